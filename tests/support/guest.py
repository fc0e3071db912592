"""The program that reports from inside an app, and reading what it reported."""

from __future__ import annotations

import subprocess
from pathlib import Path

GUEST = "/bin/guest"


def build_guest(output: Path) -> None:
    """Compile the guest program, linked statically."""
    build_program("guest", output)


def build_program(name: str, output: Path) -> None:
    """Compile the program of that name beside this file, linked statically."""
    source = Path(__file__).with_name(f"{name}.c")
    subprocess.run(["cc", "-static", "-O1", "-Wall", "-Werror", "-o", str(output), str(source)], check=True)


class Report:
    """The report of `guest report` about an app's surroundings."""

    def __init__(self, path: Path) -> None:
        self._values: dict[str, list[bytes]] = {}
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            self._values.setdefault(key, []).append(bytes.fromhex(value))

    def all(self, key: str) -> list[str]:
        """Return the values of a key."""
        return [value.decode(errors="surrogateescape") for value in self._values.get(key, [])]

    def one(self, key: str) -> str:
        """Return the only value of a key."""
        [value] = self.all(key)
        return value

    @property
    def arguments(self) -> list[bytes]:
        """The program's argv."""
        return self._values["arg"]

    @property
    def environment(self) -> dict[str, str]:
        """The program's environment."""
        return dict(entry.split("=", 1) for entry in self.all("env"))

    @property
    def status(self) -> dict[str, str]:
        """The fields of /proc/self/status."""
        lines = self.one("status").splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    @property
    def descriptors(self) -> dict[int, tuple[int, str]]:
        """The open descriptors with their file status flags and targets."""
        entries = [entry.split(" ", 2) for entry in self.all("fd")]
        return {int(fd): (int(flags), target) for fd, flags, target in entries}
