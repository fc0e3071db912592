"""Devices by CDI: what containers get that ask for them, and files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import CallError
from minit.cri.translation.container import with_cdi_devices

VENDOR = """
cdiVersion: "0.7.0"
kind: vendor.com/gpu
containerEdits:
  env: [DRIVER=1]
  mounts:
  - {hostPath: /lib/a.so, containerPath: /lib/b.so, options: [ro, rslave, nosuid, rbind]}
devices:
- name: gpu0
  containerEdits:
    env: ["GPU=0=a"]
    additionalGids: [44]
    deviceNodes: [{path: /dev/gpu0, hostPath: /dev/zero, permissions: rw}]
- name: all
  containerEdits: {deviceNodes: [{path: /dev/gpu0, type: c, major: 1, minor: 2}]}
"""


def edits(**edits: object) -> str:
    """Return a file with one device `x` of `v/c`."""
    return json.dumps({"kind": "v/c", "devices": [{"name": "x", "containerEdits": edits}]})


def test_what_a_device_brings(tmp_path: Path) -> None:
    """Nodes, mounts, variables and groups are added; what is for all devices of a file comes once."""
    (tmp_path / "vendor.yaml").write_text(VENDOR)
    (tmp_path / "broken.json").write_text("{")
    asked = api.ContainerConfig(
        envs=[api.KeyValue(key="A", value=b"b")],
        CDI_devices=[api.CDIDevice(name="vendor.com/gpu=gpu0")],
        annotations={"cdi.k8s.io/plugin": "vendor.com/gpu=all,vendor.com/gpu=gpu0", "other": "x"},
    )
    found = with_cdi_devices(asked, [tmp_path / "none", tmp_path])
    assert [(one.key, one.value) for one in found.envs] == [("A", b"b"), ("DRIVER", b"1"), ("GPU", b"0=a")]
    assert [(one.container_path, one.host_path, one.permissions) for one in found.devices] == [
        ("/dev/gpu0", "/dev/zero", "rw"),
        ("/dev/gpu0", "/dev/gpu0", "rwm"),
    ]
    [mount] = found.mounts
    assert mount == api.Mount(
        container_path="/lib/b.so",
        host_path="/lib/a.so",
        readonly=True,
        propagation=api.PROPAGATION_HOST_TO_CONTAINER,
        mount_options=["nosuid"],
    )
    assert [*found.linux.security_context.supplemental_groups] == [44]
    assert len(asked.envs) == 1


def test_the_last_directory_counts_most(tmp_path: Path) -> None:
    """A device of two directories is that of the last one; of two files of one directory it is none."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.json").write_text(edits(env=[f"FROM={name}"]))
    asked = api.ContainerConfig(CDI_devices=[api.CDIDevice(name="v/c=x")])
    [variable] = with_cdi_devices(asked, [tmp_path / "a", tmp_path / "b"]).envs
    assert variable.value == b"b"
    (tmp_path / "b" / "y.json").write_text(edits())
    with pytest.raises(CallError, match=r"CDI device v/c=x: .*/b/x.json and .*/b/y.json have it"):
        with_cdi_devices(asked, [tmp_path / "a", tmp_path / "b"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (edits(hooks=[{"hookName": "createContainer", "path": "/bin/true"}]), "hooks: expected none"),
        (edits(intelRdt={"closID": "x"}), "intelRdt: expected none"),
        (edits(mounts=[{"hostPath": "/a", "containerPath": "/b", "options": ["sync"]}]), "options.0.: expected an op"),
        (edits(mounts=[{"hostPath": "/a", "containerPath": "b"}]), "containerPath: expected an absolute path"),
        (edits(deviceNodes=[{"path": "/dev/x", "type": "p"}]), "type: expected"),
        (edits(env=["=x"]), "env.0.: expected NAME=VALUE"),
        ('{"kind": "v/other", "devices": []}', "no file has it"),
        ("[]", "no file has it; .*x.json: expected an object"),
    ],
)
def test_what_cannot_be_had(tmp_path: Path, text: str, message: str) -> None:
    """What minit has nothing for is refused, and a device that there is not, with what is wrong with files."""
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(CallError, match=f"CDI device v/c=x: .*{message}"):
        with_cdi_devices(api.ContainerConfig(CDI_devices=[api.CDIDevice(name="v/c=x")]), [tmp_path])


@pytest.mark.parametrize("name", ["", "x", "v/c", "v/c=", "/c=x", "v/c=x y"])
def test_names_of_devices(tmp_path: Path, name: str) -> None:
    """A name has a vendor, a class and a device."""
    with pytest.raises(CallError, match="expected VENDOR/CLASS=NAME"):
        with_cdi_devices(api.ContainerConfig(CDI_devices=[api.CDIDevice(name=name)]), [tmp_path])
