"""Updates of a machine in qemu: the other slot gets the new version, whenever the power goes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.boot.conftest import BuildMachine
from tests.support.machine import BOOT_SECONDS, X86_64, Firmware
from tests.support.pods import shell

_CONFIG = f"""
hostname = "sensor"

[disk]
modules = ["virtio_pci", "virtio_blk"]
command_line = "{X86_64.words} quiet panic=-1"
root_mib = 64
"""


def _make_keys(directory: Path) -> Path:
    key = directory / "update.key"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
    subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", directory / "update.pub"], check=True)
    return key


def _config(version: str, words: str = "") -> str:
    return f'{words}\n{_CONFIG}\n[update]\nmodel = "sensor"\nversion = "{version}"\nkeys = ["update.pub"]\n'


@pytest.mark.timeout(2 * BOOT_SECONDS)
def test_the_same_bytes(firmware: Firmware, build_machine: BuildMachine, tmp_path: Path) -> None:
    """The same parts and the same key make the same update."""
    key = _make_keys(tmp_path)
    one, two = (
        build_machine({"one": shell("echo hello")}, _config("2"), form="update", signing_key=key).read_bytes()
        for _ in range(2)
    )
    assert one == two and one.startswith(b"minit update 1\n")
