"""Updates that nobody asks for at the prompt: an app brings one by a socket, a server has one."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from minit.manifest.machineupdate import UpdateManifest, UpdatePart, dump_update, make_header, signed_bytes
from minit.podfiles import paths
from tests.support.firstprogram import NamespaceMachine
from tests.support.pods import MakePod, shell

_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
_PART = UpdatePart(size_bytes=8192, sha512="0" * 128, partition_bytes=8192)
_CONFIG = '[update]\nmodel = "sensor"\nversion = "1.9"\nkeys = ["update.pub"]\n'
_WAIT_SECONDS = 60.0


@contextmanager
def _machine(make_pod: MakePod, directory: Path, config: str) -> Iterator[NamespaceMachine]:
    app = shell("ls -l /update; trap 'exit 0' TERM; echo up; sleep 1000 & wait")
    volumes = [{"name": "update", "kind": "host", "source": paths.MACHINE_UPDATES}]
    mounts = [{"volume": "update", "path": "/update"}]
    apps = {"one": {**app, "mounts": mounts}} if "socket" in config else {"one": app}
    pod = make_pod(apps, overlay=False, volumes=volumes if "socket" in config else [])
    machine = NamespaceMachine(directory, pod, _CONFIG + config)
    keys = machine.root / paths.MACHINE_KEYS.lstrip("/")
    keys.mkdir()
    pem = _KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (keys / "update.pub").write_bytes(pem)
    with machine:
        yield machine


def _connect(machine: NamespaceMachine) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_WAIT_SECONDS)
    connection.connect(f"/proc/{machine.wait_for_helper()}/root{paths.MACHINE_UPDATES}/socket")
    return connection


def _send(connection: socket.socket, data: bytes) -> str:
    with connection, connection.makefile("r") as answer:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        line = json.loads(answer.read())
    assert list(line) == ["error"]
    return str(line["error"]).removeprefix(f"{paths.MACHINE_UPDATES}/socket: an app's update: ")


def _update(version: str) -> bytes:
    manifest = dump_update(
        UpdateManifest(
            model="sensor",
            version=version,
            architecture="amd64",
            root_hash="0" * 64,
            root_blocks=1,
            root=_PART,
            boot=_PART,
        )
    )
    return make_header(manifest, _KEY.sign(signed_bytes(manifest))) + manifest


def test_an_app_brings_an_update(make_pod: MakePod, tmp_path: Path) -> None:
    """
    An app that has the socket is answered, one after the other, and can bring nothing that is not signed or older; the
    machine goes on.
    """
    with _machine(make_pod, tmp_path, "socket = true\n") as machine:
        assert "srw-rw-rw-" in machine.wait_for_line("socket")
        machine.wait_for_line("up")
        slow = _connect(machine)
        slow.sendall(b"minit")
        waiting = _connect(machine)
        waiting.sendall(b"x")
        waiting.setblocking(False)
        with pytest.raises(BlockingIOError):
            waiting.recv(1)
        waiting.settimeout(_WAIT_SECONDS)
        slow.close()
        assert _send(waiting, b"x" * 100).startswith("expected an update for a machine")
        unsigned = bytearray(_update("2"))
        unsigned[20] ^= 1
        assert _send(_connect(machine), bytes(unsigned)).startswith("expected a signature")
        assert _send(_connect(machine), _update("1.8")).startswith("version 1.8 is not newer than 1.9")
        assert "is in no slot" in _send(_connect(machine), _update("2"))
        machine.run("/bin/minit", "poweroff")
        assert machine.wait().ending == "off"


def test_a_server_that_is_not_there(make_pod: MakePod, tmp_path: Path) -> None:
    """A server is asked again and again, and that it does not answer is a line each time."""
    with _machine(make_pod, tmp_path, 'url = "http://127.0.0.1:1/x"\ncheck_seconds = 1\n') as machine:
        for _ in range(2):
            machine.wait_for_line("minit: update: http://127.0.0.1:1/x: connection refused")
        machine.run("/bin/minit", "poweroff")
        assert machine.wait().ending == "off"
