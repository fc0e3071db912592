"""Pods of one `play` that run side by side, each by a process of its own, as one thing for whoever started them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from minit.hostnotify import DESCRIPTOR_VARIABLE, READY, SOCKET_VARIABLE, STOPPING, Host
from minit.loop import Loop, wait_readable
from minit.value import Value

# What the launcher of a pod takes for the wish to stop it.
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPWR, signal.SIGRTMIN + 3)
_CHUNK_BYTES = 256


class PreparedPod(Value):
    """A pod that is prepared: its UUID, the words that run it, and how many of its Job may run at a time."""

    uuid: str
    command: tuple[str, ...]
    job: str | None
    parallel: int


def run_together(pods: Sequence[PreparedPod], host: Host) -> int:
    """
    Run pods until all have ended, and return the code of the first that failed.

    When one has failed, no other of its Job is started; after a signal that stops them, none at all. `host` is told
    READY once, when all pods that run are ready or have done their work, and STOPPING at such a signal.
    """
    together = _Together(pods, host)
    with _heard_signals() as signals:
        return together.run(signals)


def environment_of_pods() -> dict[str, str]:
    """Return this process's environment without the words of a service manager, which are for it alone."""
    return {name: value for name, value in os.environ.items() if name not in (SOCKET_VARIABLE, DESCRIPTOR_VARIABLE)}


class _Process:
    """
    The process that runs a pod, and the end of the pipe by which it tells that the pod is ready.

    It is the leader of a process group, so that a signal for that of `play`, as Ctrl-C is one, reaches the pod once.
    """

    def __init__(self, pod: PreparedPod) -> None:
        self.pod = pod
        self.is_ready = False
        self.reader, writer = os.pipe()
        try:
            self.popen = subprocess.Popen(
                pod.command,
                env={**environment_of_pods(), DESCRIPTOR_VARIABLE: str(writer)},
                pass_fds=(writer,),
                process_group=0,
            )
        except BaseException:
            os.close(self.reader)
            raise
        finally:
            os.close(writer)
        self.pidfd = os.pidfd_open(self.popen.pid)

    def read(self) -> bool:
        """Note what it tells, and return whether it has told all."""
        data = os.read(self.reader, _CHUNK_BYTES)
        self.is_ready = self.is_ready or b"\n" in data
        return self.is_ready or not data

    def end(self) -> int:
        """Return the exit code of a process that has ended; one that did its work was ready."""
        if not self.is_ready and wait_readable([self.reader], 0):
            self.read()
        os.close(self.reader)
        os.close(self.pidfd)
        code = self.popen.wait()
        self.is_ready = self.is_ready or code == 0
        return code if code >= 0 else 128 - code


class _Together:
    def __init__(self, pods: Sequence[PreparedPod], host: Host) -> None:
        self._host = host
        self._waiting = [*pods]
        self._running: list[_Process] = []
        self._failed: set[str] = set()
        self._code = 0
        self._may_be_ready = True
        self._is_stopping = False
        self._loop = Loop()

    def run(self, signals: int) -> int:
        """Return when all have ended; `signals` has a byte for each signal, its number."""
        self._loop.watch(signals, lambda _: self._stop(os.read(signals, _CHUNK_BYTES)))
        try:
            while self._waiting or self._running:
                self._start()
                if self._running:
                    self._loop.turn()
                self._tell_readiness()
        except BaseException:
            for process in self._running:
                process.popen.terminate()
            for process in self._running:
                process.popen.wait()
            raise
        return self._code

    def _start(self) -> None:
        for pod in [*self._waiting]:
            if pod.job in self._failed:
                self._waiting.remove(pod)
            elif sum(other.pod.job == pod.job for other in self._running) < pod.parallel:
                self._waiting.remove(pod)
                process = _Process(pod)
                self._running.append(process)
                self._loop.watch(process.reader, partial(self._on_readiness, process))
                self._loop.watch(process.pidfd, partial(self._on_end, process))

    def _tell_readiness(self) -> None:
        if self._may_be_ready and all(process.is_ready for process in self._running):
            self._may_be_ready = False
            self._host.tell(READY)

    def _on_readiness(self, process: _Process, _: int) -> None:
        if process.read():
            self._loop.unwatch(process.reader)

    def _on_end(self, process: _Process, _: int) -> None:
        self._loop.unwatch(process.reader)
        self._loop.unwatch(process.pidfd)
        self._running.remove(process)
        code = process.end()
        self._code = self._code or code
        if code and process.pod.job is not None:
            self._failed.add(process.pod.job)
        if not process.is_ready:
            self._may_be_ready = False

    def _stop(self, numbers: bytes) -> None:
        self._waiting.clear()
        self._may_be_ready = False
        if not self._is_stopping:
            self._is_stopping = True
            self._host.tell(STOPPING)
        for number in numbers:
            for process in self._running:
                process.popen.send_signal(number)


@contextmanager
def _heard_signals() -> Iterator[int]:
    """A descriptor with a byte for each signal of _STOPS that comes meanwhile, its number; what is ignored stays so."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    heard = [number for number in _STOPS if signal.getsignal(number) is not signal.SIG_IGN]
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    before = {number: signal.signal(number, lambda number, frame: None) for number in heard}
    try:
        yield reader
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(reader)
        os.close(writer)
