"""Updates of a machine in qemu: the other slot gets the new version, whenever the power goes."""

from __future__ import annotations

import json
import subprocess
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from minit.image.disk import sign
from minit.manifest.machineupdate import BLOCK_BYTES, HEADER, make_header, parse_header, signed_bytes
from tests.boot.conftest import BuildMachine
from tests.support.bootmachine import USER_NETWORK, QemuMachine
from tests.support.campaign import LONG
from tests.support.cutdisk import CutDisk
from tests.support.disks import find_partition
from tests.support.machine import BOOT_SECONDS, HERE, Firmware
from tests.support.pods import shell

_CUTS = 50 if LONG else 2
# Of a processor that is slow to emulate: the first and the last.
_FOREIGN_CUTS = 2
_CONFIG = """
hostname = "sensor"
console = true

[disk]
modules = ["virtio_pci", "virtio_blk"]
command_line = "WORDS quiet panic=-1"
root_mib = 64
"""
_NETWORK = """
[[interface]]
name = "eth0"
dhcp = true
"""
_APP = "echo version {}; sleep 1000000"


def _make_keys(directory: Path) -> Path:
    key = directory / "update.key"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
    subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", directory / "update.pub"], check=True)
    return key


def _config(version: str) -> str:
    return f'{_CONFIG}\n[update]\nmodel = "sensor"\nversion = "{version}"\nkeys = ["update.pub"]\n'


@pytest.mark.timeout((_CUTS + 5) * BOOT_SECONDS)
def test_an_update(firmware: Firmware, build_machine: BuildMachine, tmp_path: Path) -> None:
    """
    The same parts and the same key make the same update; whenever the power goes while the other slot gets it, the old
    version starts; there one that is damaged or signed by somebody else changes nothing, and the update is booted.
    """
    key = _make_keys(tmp_path)
    disk = _build(build_machine, "1", form="disk").rename(tmp_path / "disk")
    update = _build(build_machine, "2", form="update", signing_key=key).rename(tmp_path / "2")
    data = bytearray(update.read_bytes())
    assert data.startswith(b"minit update 1\n")
    assert _build(build_machine, "2", form="update", signing_key=key).read_bytes() == data
    count = _CUTS if firmware.processor is HERE else _FOREIGN_CUTS
    for cut in _cuts(disk, update, count):
        with (
            CutDisk(disk, tmp_path / "nbd", cut) as power,
            QemuMachine(firmware, tmp_path, disks=[power.source, update]) as machine,
        ):
            _open_prompt(machine, "1")
            machine.type("init update --quiet --reboot /dev/vdb\n")
            assert power.is_cut.wait(BOOT_SECONDS), machine.lines
            machine.cut_power()

    damaged, foreign = tmp_path / "damaged", tmp_path / "foreign"
    data[1 << 20] ^= 1
    damaged.write_bytes(data)
    (tmp_path / "other").mkdir()
    manifest = _read_manifest(update)
    foreign.write_bytes(
        make_header(manifest, sign(_make_keys(tmp_path / "other"), signed_bytes(manifest))[1]) + manifest
    )
    with QemuMachine(firmware, tmp_path, disks=[disk, update, damaged, foreign]) as machine:
        _open_prompt(machine, "1")
        for node, line in (("vdd", "expected a signature by one of this machine's keys"), ("vdc", "damaged: the root")):
            machine.type(f"init update /dev/{node}\n")
            machine.wait_for_line(f"update: /dev/{node}: {line}")
        machine.type("init update --quiet --format=json --reboot /dev/vdb\n")
        machine.wait_for_line('{"version":"2","slot":"b"}')
        machine.wait()
    with QemuMachine(firmware, tmp_path, disks=[disk, update]) as machine:
        _open_prompt(machine, "2")
        machine.type("init update /dev/vdb\n")
        machine.wait_for_line("update: version 2 is the one that runs")
        machine.type("init status --format=json\n")
        line = machine.wait_for_line('"slots"')
        # Typed before the prompt, a line is answered behind the prompt.
        told = json.loads(line[line.index("{") :])
    assert [told["slots"]["b"]["version"], told["trial"]["version"], told["running"]] == ["2", "2", "b"]


@pytest.mark.long
@pytest.mark.timeout(4 * BOOT_SECONDS)
def test_unattended_updates(firmware: Firmware, build_machine: BuildMachine, tmp_path: Path) -> None:
    """A machine finds a new version at a server, tries again when it is cut short, and starts again with it."""
    key = _make_keys(tmp_path)
    with _Server() as server:
        words = f'url = "http://10.0.2.2:{server.port}/sensor.update"\ncheck_seconds = 1\n{_NETWORK}'
        disk = _build(build_machine, "1", words, form="disk").rename(tmp_path / "disk")
        server.file = _build(build_machine, "2", words, form="update", signing_key=key).read_bytes()
        with QemuMachine(firmware, tmp_path, disks=[disk], networks=[USER_NETWORK]) as machine:
            machine.wait()
        # Before there is a lease, the network is unreachable.
        own = [line for line in machine.lines if line.startswith("minit: update: ") and "unreachable" not in line]
        assert len(own) == 2 and "cut short" in own[0], machine.lines
        assert own[1] == "minit: update: version 2 is in slot b"
        with QemuMachine(firmware, tmp_path, disks=[disk], networks=[USER_NETWORK]) as machine:
            _open_prompt(machine, "2")


class _Server(ThreadingHTTPServer):
    """A server that has one file, and closes the first connection in the middle of it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.port = self.server_address[1]
        self.file = b""
        self.is_first = True

    def __enter__(self) -> _Server:
        self._thread = threading.Thread(target=self.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        data, self.server.is_first = self.server.file[: -(1 << 20) if self.server.is_first else None], False
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.file)))
        self.end_headers()
        # Who runs the version already has read enough.
        with suppress(ConnectionError):
            self.wfile.write(data)


def _cuts(disk: Path, update: Path, count: int) -> list[tuple[int, int]]:
    """Return bytes of the other slot, from the first that is erased to the last that is written: the same one."""
    manifest = json.loads(_read_manifest(update))
    (boot, _), (root, _) = (find_partition(disk, f"{kind}-b") for kind in ("boot", "root"))
    root_bytes, boot_bytes = (manifest[kind]["size_bytes"] for kind in ("root", "boot"))
    between = []
    for number in range(count - 2):
        offset = (2 * number + 1) * (root_bytes + boot_bytes) // (2 * (count - 2))
        between.append((root + offset if offset < root_bytes else boot + max(offset - root_bytes, BLOCK_BYTES), 1))
    return [(boot, 1), *between, (boot, 2)]


def _read_manifest(update: Path) -> bytes:
    with update.open("rb") as file:
        return file.read(parse_header(file.read(HEADER.size), "update").manifest_bytes)


def _build(build_machine: BuildMachine, version: str, words: str = "", **how: Any) -> Path:
    apps = {"one": shell(_APP.format(version))}
    return build_machine(apps, _config(version) + words, ("virtio_net",) if words else (), **how)


def _open_prompt(machine: QemuMachine, version: str) -> None:
    """Wait until a version runs, and press Enter."""
    machine.wait_for_line("press Enter")
    machine.wait_for_line("one[")
    assert machine.said("one") == [f"version {version}"], machine.lines
    machine.type("\n")
    machine.wait_for_line("sensor> ")
