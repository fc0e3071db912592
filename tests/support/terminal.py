"""A terminal and the person in front of it: a pty, what is typed into it, what it shows."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.support.pods import PodDirectory
from tests.support.usersession import without_shown_warning
from tests.support.waiting import TIMEOUT_SECONDS

CTRL_C, CTRL_D, CTRL_Z, CTRL_BACKSLASH = b"\3", b"\4", b"\x1a", b"\x1c"
_LOCAL_MODES = 3


class Terminal:
    """A terminal of `rows` and `columns`; `slave` is what programs have as descriptors 0 to 2."""

    def __init__(self, rows: int = 24, columns: int = 80) -> None:
        self.master, self.slave = os.openpty()
        os.set_blocking(self.master, False)
        self.resize(rows, columns)
        self.seen = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the terminal away, as closing its window does."""
        for fd in (self.master, self.slave):
            if fd >= 0:
                os.close(fd)
        self.master = self.slave = -1

    def resize(self, rows: int, columns: int) -> None:
        """Change the size, which tells the programs in the foreground."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    @property
    def settings(self) -> list[Any]:
        """The settings by tcgetattr(3)."""
        return termios.tcgetattr(self.slave)

    @property
    def is_raw(self) -> bool:
        """Tell whether the terminal leaves every byte as it is."""
        return not self.settings[_LOCAL_MODES] & (termios.ICANON | termios.ISIG | termios.ECHO)

    def run(self, pod: PodDirectory, *flags: str, **options: Any) -> subprocess.Popen[bytes]:
        """
        Run a pod with --interactive and the terminal as its caller's; `options` may redirect some streams.

        It has the host's network, about which nothing is said that would be among what the terminal shows.
        """
        return pod.start("--interactive", *flags, **{"net": "host", **self.options, **options})

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of subprocess.Popen for a program in front of the terminal."""
        streams = {"stdin": self.slave, "stdout": self.slave, "stderr": self.slave}
        return {**streams, "start_new_session": True, "preexec_fn": self._become_controlling}

    def run_shell(self, pod: PodDirectory, script: Path, *flags: str) -> subprocess.Popen[bytes]:
        """Run an interactive bash in which the command `script` runs the pod."""
        write = 'printf "#!/bin/sh\\nexec " > "$0"; printf "%q " "$@" >> "$0"; chmod +x "$0"'
        shell = ["bash", "-c", f"{write}; PS1='ready> ' exec bash --norc --noprofile --noediting -i", str(script)]
        process = self.run(pod, *flags, under=shell)
        self.expect(rb"ready> ")
        return process

    def _become_controlling(self) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)

    def type(self, data: bytes) -> None:
        """Type, however slowly it is taken."""
        while data:
            select.select([], [self.master], [], TIMEOUT_SECONDS)
            # A terminal that says that it has room may have none when it is written to.
            with suppress(BlockingIOError):
                data = data[os.write(self.master, data) :]

    def expect(self, pattern: bytes, timeout_seconds: float = TIMEOUT_SECONDS) -> re.Match[bytes]:
        """Return the match when the terminal has shown it, and forget everything up to there."""
        found = None

        def look() -> bool:
            nonlocal found
            found = re.search(pattern, self.seen, re.DOTALL)
            return found is not None

        self.read_until(look, timeout_seconds)
        assert found is not None, f"waited {timeout_seconds} s for {pattern!r}, saw {self.seen[-2000:]!r}"
        self.seen = self.seen[found.end() :]
        return found

    def read_until(self, condition: Callable[[], bool], timeout_seconds: float = TIMEOUT_SECONDS) -> bool:
        """Read what is shown until the condition holds, or the time is over; return whether it holds."""
        end = time.monotonic() + timeout_seconds
        while not condition():
            if time.monotonic() > end:
                return False
            # Conditions may be about other things than what is shown.
            if select.select([self.master], [], [], 0.02)[0]:
                try:
                    self._read()
                except OSError:
                    return condition()
        return True

    def finish(self, process: subprocess.Popen[bytes]) -> int:
        """Read until a program has ended and return its exit code."""
        assert self.read_until(lambda: process.poll() is not None), f"it does not end: {self.seen[-2000:]!r}"
        while select.select([self.master], [], [], 0)[0]:
            self._read()
        assert process.returncode is not None
        return process.returncode

    def _read(self) -> None:
        self.seen = without_shown_warning(self.seen + os.read(self.master, 1 << 16))
