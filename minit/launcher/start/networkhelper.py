"""
The network helper: a process that connects the pod to its networks while the launcher goes on, and is gone afterwards.

The helper holds the pod's lock, or the pod could be collected meanwhile. Until the launcher keeps the networks, any end
of the launcher makes the helper undo everything. A module beside `launch`, for the work of another process.
"""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Sequence

from minit.base.errors import MinitError, NetworkError, StrandedError, describe
from minit.launcher.ownimage import image_descriptor
from minit.linux import syscalls
from minit.linux.forks import NETWORK_HELPER, fork
from minit.linux.loop import wait_readable
from minit.linux.messages import Socket, receive_message, send_message, socket_pair
from minit.linux.stdio import complain
from minit.network.namespace import enter_user_network
from minit.network.netinfo import forget_network
from minit.network.pluginrequests import search_for_pod
from minit.network.setup import set_up, tear_down
from minit.network.uplink import await_uplink
from minit.plan.inputs.runflags import RunFlags
from minit.plan.networks.networkplan import Connection, NetworkPlan
from minit.podfiles import paths

_DIED = "the process that did it died"


class NetworkHelper:
    """The launcher's side of the helper; the process exists from the beginning until `release` or `undo`."""

    def __init__(self, plan: NetworkPlan, flags: RunFlags, lock: int) -> None:
        self._socket, theirs = socket_pair()
        self._pid = fork(
            NETWORK_HELPER,
            lambda: _help(plan, flags, theirs),
            {"socket": theirs.fileno(), "lock": lock, "image": image_descriptor()},
            tell=lambda error: _fail(theirs, error),
        )
        theirs.close()

    def wait(self, signals: Sequence[int]) -> Connection:
        """
        Return what the networks came to; NetworkError if they failed, or one of the (blocked) signals came before.

        Nothing is left of them then.
        """
        stopped = None
        signal_source = syscalls.signalfd(signals)
        try:
            if self._socket.fileno() not in wait_readable([self._socket.fileno(), signal_source]):
                stopped = syscalls.read_signals(signal_source)[0]
                self._socket.shutdown(socket.SHUT_WR)
                wait_readable([self._socket.fileno()])
        finally:
            os.close(signal_source)
        message, _ = receive_message(self._socket)
        if stopped is not None:
            raise NetworkError(f"failed to setup network: interrupted by signal {stopped}")
        if message is None:
            raise NetworkError(f"failed to setup network: {_DIED}")
        if "failed" in message:
            raise NetworkError(f"failed to setup network: {message['failed']}")
        return Connection(
            namespace=str(message["namespace"]),
            host_address=_optional(message["host_address"]),
            resolv_conf=_optional(message["resolv_conf"]),
            is_host_dns=bool(message["is_host_dns"]),
            pod_addresses=_strings(message["pod_addresses"]),
        )

    def release(self) -> None:
        """Let the helper go: the networks are the pod's from now on, and gc undoes them."""
        try:
            send_message(self._socket, {"keep": True})
        except BrokenPipeError:
            pass  # it was killed when it had done its work
        self._end()

    def undo(self) -> None:
        """Have everything undone and wait for that."""
        self._end()

    def _end(self) -> None:
        self._socket.close()
        os.waitpid(self._pid, 0)


def _strings(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _optional(value: object) -> str | None:
    return None if value is None else str(value)


def _help(plan: NetworkPlan, flags: RunFlags, socket: Socket) -> None:
    try:
        enter_user_network()
        _connect(plan, flags, socket)
    except StrandedError as error:
        _report(socket, str(error))  # and gc undoes it
    except Exception as error:
        reason = describe(error)
        if not isinstance(error, (MinitError, OSError)):
            reason = f"{type(error).__name__}: {reason}"  # a defect, which leaves nothing behind either
        _undo_networks(flags.uuid, flags.local_config)
        _report(socket, reason)
    else:
        if not _is_kept(socket):
            _undo_networks(flags.uuid, flags.local_config)


def _fail(socket: Socket, error: BaseException) -> None:
    if isinstance(error, OSError):
        _report(socket, describe(error))
    else:
        traceback.print_exception(error)


def _connect(plan: NetworkPlan, flags: RunFlags, socket: Socket) -> None:
    connection = set_up(plan, flags, search_for_pod(flags.local_config), socket.fileno())
    await_uplink()
    send_message(
        socket,
        {
            "namespace": connection.namespace,
            "host_address": connection.host_address,
            "resolv_conf": connection.resolv_conf,
            "is_host_dns": connection.is_host_dns,
            "pod_addresses": connection.pod_addresses,
        },
    )


def _report(socket: Socket, reason: str) -> None:
    try:
        send_message(socket, {"failed": reason})
    except (BrokenPipeError, ConnectionResetError):
        pass  # the launcher was killed, which may have been the reason


def _is_kept(socket: Socket) -> bool:
    """Wait for the launcher and tell whether the pod goes on, as it must be taken to do if that cannot be known."""
    try:
        message, _ = receive_message(socket)
    except OSError:
        return True
    return message is not None


def _undo_networks(uuid: str, local_config: str) -> None:
    """Take the pod in the working directory off its networks; what goes wrong is a line on stderr, and left to gc."""
    if not os.path.lexists(paths.POD_NETNS):
        return
    problems = tear_down(uuid, search_for_pod(local_config), is_last=False)
    if not problems:
        try:
            forget_network()
        except OSError as error:
            problems = [f"error forgetting the networks: {describe(error)}"]
    for problem in problems:
        complain(f"networking: {problem}")
