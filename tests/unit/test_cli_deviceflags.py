"""--device: what it is read as, and the volumes that are made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import MinitError
from minit.cli.flags.appoptions import parse_device
from minit.cli.flagwords import FlagError
from minit.pods import hostfiles
from minit.pods.hostfiles import with_devices
from minit.stage0.pods.appsection import AppOverrides, Device

PATHS = st.text(st.characters(exclude_characters=":\0", exclude_categories=["Cs"])).map(lambda text: f"/{text}")
ACCESS = st.lists(st.sampled_from("rwm"), min_size=1, unique=True).map("".join)


@given(PATHS, st.none() | PATHS, st.none() | ACCESS)
def test_devices_read_back(source: str, target: str | None, access: str | None) -> None:
    """A device has a path, perhaps another place, and perhaps letters of its uses."""
    text = ":".join(part for part in (source, target, access) if part is not None)
    assert parse_device("--device", text) == Device(source=source, target=target or source, access=access or "rwm")


@pytest.mark.parametrize(
    "text", ["", "dev/null", "/dev/null:", "/a:/b:", "/a:/b:rwx", "/a:rr", "/a:b", "/a:/b:r:w", "v/c", "v=c", "v/c="]
)
def test_other_words_are_none(text: str) -> None:
    """The error has the form and the word."""
    with pytest.raises(FlagError, match=r"--device: expected /PATH\[:/TARGET\]\[:rwm\]\|VENDOR/CLASS=NAME, got"):
        parse_device("--device", text)


def with_words(*words: str, **fields: Any) -> AppOverrides:
    """Return the settings of an app with some devices."""
    return with_devices(AppOverrides(devices=tuple(parse_device("--device", word) for word in words), **fields))


def test_devices_are_volumes(tmp_path: Path) -> None:
    """Links are followed, the last at a place counts, and letters are in an annotation."""
    (tmp_path / "link").symlink_to("/dev/null")
    annotations = (("minit/mounts", '{"/data":{"readOnly":true}}'), ("a", "b"))
    found = with_words(f"{tmp_path}/link:/dev/a:r", "/dev/zero:/dev/b", "/dev/full:/dev//b", annotations=annotations)
    assert [(mount.path, mount.app_volume and mount.app_volume.source) for mount in found.mounts] == [
        ("/dev/a", "/dev/null"),
        ("/dev/b", "/dev/full"),
    ]
    assert [mount.app_volume and mount.app_volume.read_only for mount in found.mounts] == [True, False]
    assert len({mount.volume for mount in found.mounts}) == 2 and found.devices == ()
    told = dict(found.annotations)
    assert told["a"] == "b" and json.loads(told["minit/mounts"]) == {
        "/data": {"readOnly": True},
        "/dev/a": {"deviceAccess": "r"},
        "/dev/b": {"deviceAccess": "rwm"},
    }
    assert {mount.path for mount in with_words("/dev:/all").mounts} >= {"/all/null", "/all/zero"}
    assert with_words() == AppOverrides()


def test_devices_of_vendors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Their file's nodes, mounts, variables and groups are those of the app, whose own variables count more."""
    edits = {
        "env": ["GPU=0", "A=vendor"],
        "deviceNodes": [{"path": "/dev/gpu", "hostPath": "/dev/zero", "permissions": "rw"}],
        "mounts": [{"hostPath": "/lib", "containerPath": "/gpu/lib", "options": ["ro", "nosuid"]}],
        "additionalGids": [44],
    }
    document = {"kind": "vendor.com/gpu", "devices": [{"name": "0", "containerEdits": edits}]}
    (tmp_path / "vendor.json").write_text(json.dumps(document))
    monkeypatch.setattr(hostfiles, "CDI_DIRECTORIES", (str(tmp_path),))
    found = with_words("vendor.com/gpu=0", "vendor.com/gpu=0", environment=(("A", "own"),), supplementary_gids=(7,))
    assert found.environment == (("GPU", "0"), ("A", "vendor"), ("A", "own"))
    assert found.supplementary_gids == (7, 44)
    assert [mount.path for mount in found.mounts] == ["/gpu/lib", "/dev/gpu"]
    assert json.loads(dict(found.annotations)["minit/mounts"]) == {
        "/gpu/lib": {"propagation": "private", "recursiveReadOnly": False, "options": ["nosuid"]},
        "/dev/gpu": {"deviceAccess": "rw"},
    }


@pytest.mark.parametrize(
    ("word", "annotation", "message"),
    [
        ("/nowhere", "{}", "--device: /nowhere: No such file or directory"),
        ("/etc/passwd", "{}", "--device: /etc/passwd: not a device"),
        ("/etc", "{}", "--device: /etc: no devices are in it"),
        ("no.such/device=0", "{}", "CDI device no.such/device=0: no file has it"),
        ("/dev/null", '{"/dev/null":{}}', "--device: minit/mounts says something about /dev/null, too"),
        ("/dev/null", "[]", "minit/mounts: expected an object"),
    ],
)
def test_devices_that_cannot_be_had(word: str, annotation: str, message: str) -> None:
    """The error names the device and what is wrong with it."""
    with pytest.raises(MinitError, match=message.replace("/", "\\/")):
        with_words(word, annotations=(("minit/mounts", annotation),))
