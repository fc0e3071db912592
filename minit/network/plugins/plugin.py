"""
Running one plugin of the CNI: a program that is asked on standard input and answers on standard output.

It runs in a session of its own, so that it can be killed with all that it started, and dies with this process. Its
standard error is the caller's.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import NoReturn

from minit import jsontext
from minit.errors import ManifestError, NetworkError, PluginError, describe
from minit.forks import PLUGIN, fork
from minit.harmless import harmless
from minit.loop import wait_readable
from minit.network.protocol import errorcodes
from minit.process import reset_signals

_MAX_OUTPUT_BYTES = 1 << 20
_MAX_SHOWN = 1000  # characters of what a plugin printed that make it into a message
_UMASK = 0o022
_BLOCK_BYTES = 1 << 16


def run_plugin(
    path: str, request: bytes, environment: Mapping[str, str], timeout_seconds: float, cancelled: int | None
) -> bytes:
    """
    Return what the plugin at `path` prints when it is given `request`.

    NetworkError is what the plugin says in the CNI's form, or how it ended if it says nothing. It is killed, with what
    it started, if it takes too long, prints too much, or the descriptor `cancelled` becomes readable.
    """
    name = f'plugin "{os.path.basename(path)}"'
    # A process that ignores it is not told how a child ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        pid, output = _start(path, request, environment)
    except OSError as error:
        raise NetworkError(f"{name} cannot be executed: {path}: {describe(error)}") from error
    pidfd = -1
    ended = None
    try:
        pidfd = os.pidfd_open(pid)
        data = _read_output(name, output, pidfd, timeout_seconds, cancelled)
        ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    except OSError as error:
        raise NetworkError(f"{name}: {describe(error)}") from error
    finally:
        if ended is None:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(output)
        if pidfd >= 0:
            os.close(pidfd)
    assert ended is not None
    if ended.si_code != os.CLD_EXITED:
        raise NetworkError(f"{name} was killed by signal {ended.si_status}")
    if ended.si_status != 0:
        raise _own_error(data) or NetworkError(_exit_text(name, ended.si_status, data))
    return data


def first_line(output: bytes) -> str:
    """Return the first line of what a plugin printed as it can be part of a message."""
    lines = output.decode(errors="replace").split("\n")
    first = next((line.strip() for line in lines if line.strip()), "")
    return _printable(first)


def _start(path: str, request: bytes, environment: Mapping[str, str]) -> tuple[int, int]:
    """Start the plugin and return its pid and the descriptor of its output; OSError if it cannot be executed."""
    ours = []
    theirs = []
    try:
        # A file, not a pipe: nobody has to write while the plugin reads, or cares if it never does.
        standard_input = os.memfd_create("request", os.MFD_CLOEXEC)
        theirs.append(standard_input)
        while request:
            request = request[os.write(standard_input, request) :]
        os.lseek(standard_input, 0, os.SEEK_SET)
        for _ in ("output", "report"):
            reader, writer = os.pipe2(os.O_CLOEXEC)
            ours.append(reader)
            theirs.append(writer)
        request_end, output_end, report_end = theirs
        pid = fork(
            PLUGIN,
            lambda: _become_plugin(path, environment),
            {"request": request_end, "output": output_end, "report": report_end},
            tell=lambda error: _tell(report_end, error),
        )
        while theirs:
            os.close(theirs.pop())
        output, report = ours
        # The end of the file means that the plugin is executed.
        failure = os.read(report, 8)
        if failure:
            os.waitpid(pid, 0)
            raise OSError(int(failure), os.strerror(int(failure)))
        os.set_blocking(output, False)
        ours.remove(output)
        return pid, output
    finally:
        for fd in (*ours, *theirs):
            os.close(fd)


def _become_plugin(path: str, environment: Mapping[str, str]) -> NoReturn:
    os.umask(_UMASK)
    reset_signals()
    os.execve(path, [path], environment)


def _tell(report: int, error: BaseException) -> int:
    if isinstance(error, OSError):
        os.write(report, b"%d" % (error.errno or 0))
    return 1


def _read_output(name: str, output: int, pidfd: int, timeout_seconds: float, cancelled: int | None) -> bytes:
    """
    Return what the plugin prints until it ends, which it has when this returns.

    A process that it leaves running may keep the output open for ever: that is nobody's concern here.
    """
    watched = {output, pidfd} if cancelled is None else {output, pidfd, cancelled}
    end = time.monotonic() + timeout_seconds
    data = b""
    while True:
        left = end - time.monotonic()
        events = wait_readable(watched, left) if left > 0 else ()
        if not events:
            raise NetworkError(f"{name} did not finish within {timeout_seconds:g} seconds")
        # Before its output is read: what it prints before it ends must not be missed.
        has_ended = pidfd in events
        if output in events or has_ended:
            block = _read_block(output)
            while block:
                data += block
                if len(data) > _MAX_OUTPUT_BYTES:
                    raise NetworkError(f"{name} printed more than {_MAX_OUTPUT_BYTES} bytes")
                block = _read_block(output)
            if block is not None and not has_ended:
                watched.remove(output)
        if has_ended:
            return data
        if cancelled in events:
            raise NetworkError(f"{name} was killed: the pod is not wanted any more")


def _read_block(fd: int) -> bytes | None:
    """Return what is there to read, None if nothing is yet, nothing at the end of the file."""
    try:
        return os.read(fd, _BLOCK_BYTES)
    except BlockingIOError:
        return None


def _own_error(output: bytes) -> PluginError | None:
    """Return the error of the CNI specification that a plugin printed, None if `output` is no such thing."""
    try:
        error = jsontext.parse(output, "")
    except ManifestError:
        return None
    if not isinstance(error, dict) or not isinstance(error.get("msg"), str) or not error["msg"]:
        return None
    code, details = error.get("code"), error.get("details")
    return PluginError(
        _printable(error["msg"]),
        code if isinstance(code, int) and code > 0 else errorcodes.ANY_OTHER,
        _printable(details) if isinstance(details, str) else "",
    )


def _exit_text(name: str, code: int, output: bytes) -> str:
    line = first_line(output)
    return f"{name} exited with code {code}{': ' if line else ''}{line}"


def _printable(text: str) -> str:
    line = harmless(" ".join(text.split()))
    return line if len(line) <= _MAX_SHOWN else line[: _MAX_SHOWN - 3] + "..."
