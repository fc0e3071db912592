"""The commands of docs/embedded.md, from nothing to a disk and to an update that the machine boots."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.bootmachine import QemuMachine
from tests.support.campaign import LONG
from tests.support.machine import BOOT_SECONDS, HERE, X86_64, Firmware, Kernel

_DOCS = Path(__file__).parents[2] / "docs/embedded.md"
# What a test has elsewhere than Debian, or need not do: packages, firmware, cards and machines.
_REPLACED = """
set -eu
minit() {
    case "$1 $2" in
    "init build") STAGE0 "$@" --stage1-path STAGE1 --efi-stub STUB ;;
    prepare*) STAGE0 "$@" --stage1-path STAGE1 ;;
    *) STAGE0 "$@" ;;
    esac
}
apt-get() { ln -s MODULES linux-image-1.deb; }
apt-cache() { :; }
dd() { :; }
cat() { command cat "$@" | sed "s/quiet/quiet no_timer_check/"; }  # as elsewhere in qemu
cp() { case $1 in /usr/share/OVMF/*) command cp "FIRMWARE/${1##*/}" "$2" ;; esac; }
qemu-system-aarch64() { :; }
qemu-system-x86_64() { printf '%s\\n' "$@" > qemu; }
"""


def _commands(heading: str) -> str:
    """Return what is typed at a shell in the blocks of a section."""
    section = _DOCS.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    typed: list[str] = []
    for block in re.findall(r"^```\n(.*?)^```", section, re.DOTALL | re.MULTILINE):
        end = ""  # the line before which a command goes on
        for line in block.splitlines():
            if line.startswith("$ "):
                end = "END" if line.endswith("<<END") else ""
                typed.append(line.removeprefix("$ "))
            elif typed and (end or typed[-1].endswith("\\")):
                typed.append(line)
                end = "" if line == end else end
    return "\n".join(typed)


@pytest.mark.long
@pytest.mark.skipif(HERE is not X86_64, reason="images for another processor are built on x86-64 alone")
@pytest.mark.timeout(5 * BOOT_SECONDS)
def test_the_commands(kernel: Kernel, firmware: Firmware, stage1_image: Path, tmp_path: Path) -> None:
    """
    Typed as they stand there, they make a disk with a prompt, which takes the update on another disk; with
    MINIT_TEST_LONG=1 that is booted.
    """
    code, variables = kernel.processor.firmware
    script = _REPLACED + _commands("Disks") + "\n" + _commands("Updates")
    places = {
        "STAGE0": f"{shlex.quote(sys.executable)} -m minit --dir={tmp_path}/data",
        "STAGE1": stage1_image,
        "STUB": kernel.processor.stub,
        "MODULES": kernel.modules,
        "FIRMWARE": variables.parent,
    }
    for name, place in places.items():
        script = re.sub(rf"\b{name}\b", str(place), script)
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=BOOT_SECONDS)
    assert done.returncode == 0, done.stderr
    drives = [word for word in (tmp_path / "qemu").read_text().splitlines() if "file=" in word]
    assert drives == [
        "file=board.disk,format=raw,if=virtio",
        f"if=pflash,format=raw,readonly=on,file=/usr/share/OVMF/{code.name}",
        "if=pflash,format=raw,file=variables",
    ]
    disks = [tmp_path / "board.disk", tmp_path / "sensor.update"]
    [update] = re.findall(r"^sensor> (init update .*)$", _DOCS.read_text(), re.MULTILINE)
    with QemuMachine(firmware, tmp_path, disks=disks) as machine:
        machine.wait_for_line("hello from sensor")
        machine.type("\n")
        machine.wait_for_line("sensor> ")
        machine.type(f"{update}\n")
        machine.wait_for_line("version 2 is in slot b: the next boot tries it")
        machine.wait()
    if LONG:
        with QemuMachine(firmware, tmp_path, disks=disks) as machine:
            machine.wait_for_line("slot b is on trial")
