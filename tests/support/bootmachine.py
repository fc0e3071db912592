"""A machine in qemu that boots what `minit init build` makes: its console, its devices, its power."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.machine import BOOT_SECONDS, Firmware, Kernel

MEMORY_MIB = 256  # an archive that is not compressed is there twice while it is unpacked
USER_NETWORK = "user"
"""A network with a DHCP server and one other address, 10.0.2.2."""


class QemuMachine:
    """
    A machine with a console; use it in a with block, which ends it.

    `initial` is its initial file system, `disks` are files, or what else qemu takes for one, /dev/vda and so on, and
    `networks` are qemu's network backends (`USER_NETWORK`), eth0 and so on. `lines` are those of the console so far. It
    does not start again when it reboots. A firmware boots from the first disk.
    """

    def __init__(
        self,
        kernel: Kernel | Firmware,
        directory: Path,
        initial: Path | None = None,
        disks: Sequence[Path | str] = (),
        networks: Sequence[str] = (),
        words: str = "",
        memory_mib: int = MEMORY_MIB,
        options: Sequence[str] = (),
    ) -> None:
        self._control = directory / "qmp"
        # Without a picture and a firmware that draws one: every device costs time to emulate.
        command = [*kernel.command(words), "-nodefaults", "-display", "none", "-m", str(memory_mib)]
        command += ["-serial", "stdio"]
        command += ["-qmp", f"unix:{self._control},server=on,wait=off", *options]
        if initial is not None:
            command += ["-initrd", str(initial)]
        for number, backend in enumerate(networks):
            command += ["-netdev", f"{backend},id=net{number}"]
            command += ["-device", f"virtio-net-pci,netdev=net{number},romfile="]
        for disk in disks:
            command += ["-drive", f"file={disk},format=raw,if=virtio"]
        self._command = command
        self.lines: list[str] = []
        self._unfinished = ""
        self._changed = threading.Condition()

    def __enter__(self) -> QemuMachine:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut_power()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()

    def wait_for_line(self, text: str, after: int = 0) -> str:
        """
        Return the first line of the console that has `text` in it, of those from number `after` on.

        A prompt, which ends with a space, need not be a whole line.
        """
        until = time.monotonic() + BOOT_SECONDS
        with self._changed:
            while True:
                last = [self._unfinished] if text.endswith(" ") else []
                found = next((line for line in (*self.lines[after:], *last) if text in line), None)
                if found is not None:
                    return found
                assert self._reader.is_alive(), self.lines
                assert self._changed.wait(until - time.monotonic()), self.lines

    def type(self, text: str) -> None:
        """Type on the console."""
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode())
        self._process.stdin.flush()

    def control(self, command: str, **arguments: object) -> Any:
        """Have qemu execute a command of its machine protocol (QMP: `device_add`, say) and return its result."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(BOOT_SECONDS)
            connection.connect(os.fspath(self._control))
            with connection.makefile("rw") as stream:
                stream.readline()  # who it is
                for request in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}):
                    stream.write(json.dumps(request) + "\n")
                    stream.flush()
                    while "event" in (answer := json.loads(stream.readline())):
                        pass
                    assert "return" in answer, answer
        return answer["return"]

    def press_power_button(self) -> None:
        """Press it."""
        self.control("system_powerdown")

    def cut_power(self) -> None:
        """Take its power away: what its disks were told stays, the rest is gone."""
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def wait(self) -> None:
        """Wait until it is off."""
        try:
            self._process.wait(BOOT_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the machine does not end: {self.lines}") from None
        self._reader.join()

    def said(self, app: str) -> list[str]:
        """Return what an app has said so far."""
        return [line.partition("]: ")[2] for line in self.lines if line.startswith(f"{app}[")]

    def _read(self) -> None:
        output = self._process.stdout
        assert isinstance(output, io.BufferedReader)
        unfinished = b""
        while data := output.read1():
            *lines, unfinished = (unfinished + data).split(b"\n")
            with self._changed:
                self.lines += [line.decode(errors="replace").rstrip("\r") for line in lines]
                self._unfinished = unfinished.decode(errors="replace")
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()
