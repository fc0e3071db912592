"""Machines that minit boots, in qemu: a kernel, the initial file system that `minit init build` makes, a console."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from pathlib import Path

from tests.support.machine import BOOT_SECONDS, QEMU

MEMORY_MIB = 128


class QemuMachine:
    """
    A machine with a console, and a network with a DHCP server and one other address, 10.0.2.2; use it in a with block.

    `lines` are those of the console so far. It does not start again when it reboots.
    """

    def __init__(self, kernel: Path, initial: Path, directory: Path, disk: Path | None = None, words: str = "") -> None:
        self._monitor = directory / "monitor"
        command = [QEMU, "-nographic", "-no-reboot", "-accel", "tcg", "-m", str(MEMORY_MIB)]
        command += ["-kernel", str(kernel), "-initrd", str(initial), "-netdev", "user,id=net"]
        command += ["-device", "virtio-net-pci,netdev=net,romfile="]
        command += ["-append", f"console=ttyS0 quiet panic=-1 {words}", "-serial", "stdio"]
        command += ["-monitor", f"unix:{self._monitor},server=on,wait=off"]
        if disk is not None:
            command += ["-drive", f"file={disk},format=raw,if=virtio"]
        self._command = command
        self.lines: list[str] = []
        self._changed = threading.Condition()

    def __enter__(self) -> QemuMachine:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def wait_for_line(self, text: str) -> str:
        """Return the first line of the console that has `text` in it."""
        until = time.monotonic() + BOOT_SECONDS
        with self._changed:
            while True:
                found = next((line for line in self.lines if text in line), None)
                if found is not None:
                    return found
                assert self._reader.is_alive(), self.lines
                assert self._changed.wait(until - time.monotonic()), self.lines

    def press_power_button(self) -> None:
        """Press it."""
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.connect(os.fspath(self._monitor))
            _read_to_prompt(monitor)
            monitor.sendall(b"system_powerdown\n")
            # Closed before, it would forget what it was told.
            _read_to_prompt(monitor)

    def wait(self) -> None:
        """Wait until it is off."""
        try:
            self._process.wait(BOOT_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the machine does not end: {self.lines}") from None
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for data in self._process.stdout:
            with self._changed:
                self.lines.append(data.decode(errors="replace").rstrip("\r\n"))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()


def _read_to_prompt(monitor: socket.socket) -> None:
    said = b""
    while not said.endswith(b"(qemu) "):
        said += monitor.recv(4096)
