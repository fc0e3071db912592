"""minit.manifest.pod: the schema of a pod, and what reading any manifest costs and withstands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minit.base.errors import ManifestError
from minit.manifest.app import App, Isolator, Port
from minit.manifest.image import parse_image_manifest
from minit.manifest.pod import ExposedPort, Mount, PodManifest, RuntimeApp, Volume, parse_pod_manifest

PROJECT = Path(__file__).parents[2]
SEARCH = settings(deadline=None)

JsonObject = dict[str, Any]
IMAGE_ID = "sha512-" + "0a" * 32


def pod(**fields: object) -> JsonObject:
    """Return the least a pod manifest needs, with `fields` on top."""
    return {"acKind": "PodManifest", "acVersion": "1.30.0", "apps": [runtime_app()], **fields}


def runtime_app(**fields: object) -> JsonObject:
    """Return the least an app of a pod needs, with `fields` on top."""
    return {"name": "web", "image": {"id": IMAGE_ID}, **fields}


def host_volume(**fields: object) -> JsonObject:
    """Return a host volume with `fields` on top."""
    return {"name": "data", "kind": "host", "source": "/srv", **fields}


def empty_volume(**fields: object) -> JsonObject:
    """Return an empty volume with `fields` on top."""
    return {"name": "scratch", "kind": "empty", **fields}


def parse(document: object) -> PodManifest:
    """Parse `document` as the file `pod`."""
    return parse_pod_manifest(json.dumps(document).encode(), "pod")


def refusal(document: object) -> str:
    """Return the message with which `document` is refused."""
    with pytest.raises(ManifestError) as caught:
        parse(document)
    message = str(caught.value)
    assert "\n" not in message
    return message


WEB = {"name": "web", "protocol": "tcp", "port": 8080, "count": 1, "socketActivated": False}
FULL_POD: JsonObject = {
    "acVersion": "1.30.0+git",
    "acKind": "PodManifest",
    "apps": [
        {
            "name": "web",
            "image": {"name": "example.com/web", "id": IMAGE_ID, "labels": [{"name": "version", "value": "1"}]},
            "app": {"exec": ["/bin/web"], "user": "0", "group": "0"},
            "readOnlyRootFS": True,
            "mounts": [
                {"volume": "data", "path": "srv"},
                {"volume": "own", "path": "/own", "appVolume": {"name": "own", "kind": "host", "source": "/own"}},
            ],
            "annotations": [{"name": "coreos.com/rkt/stage2/stdout", "value": "log"}],
        },
        {"name": "bare", "image": {"id": IMAGE_ID}},
    ],
    "volumes": [
        {"name": "data", "kind": "host", "source": "/srv", "readOnly": False, "recursive": True},
        {"name": "scratch", "kind": "empty", "mode": "1777", "uid": 1, "gid": 2, "readOnly": True, "source": ""},
        {"name": "plain", "kind": "empty"},
    ],
    "isolators": [{"name": "resource/cpu", "value": {"limit": "1"}}],
    "annotations": [{"name": "minit/stop-grace", "value": "3"}],
    "ports": [
        {"name": "http", "hostPort": 80, "hostIP": "10.0.0.1", "podPort": WEB},
        {"name": "https", "hostPort": 443, "hostIP": "", "podPort": None},
    ],
    "userAnnotations": {"A": "1", "a": "2"},
    "userLabels": {"any key": ""},
}


def test_a_full_pod_manifest_becomes_values() -> None:
    """Every field of the schema arrives, in the order of the file."""
    manifest = parse(FULL_POD)
    assert manifest == PodManifest(
        ac_version="1.30.0+git",
        apps=(
            RuntimeApp(
                name="web",
                image_id=IMAGE_ID,
                image_name="example.com/web",
                image_labels=(("version", "1"),),
                app=App(exec=("/bin/web",), user="0", group="0"),
                read_only_root_fs=True,
                mounts=(
                    Mount(volume="data", path="srv"),
                    Mount(volume="own", path="/own", app_volume=Volume(name="own", kind="host", source="/own")),
                ),
                annotations=(("coreos.com/rkt/stage2/stdout", "log"),),
            ),
            RuntimeApp(name="bare", image_id=IMAGE_ID),
        ),
        volumes=(
            Volume(name="data", kind="host", source="/srv", read_only=False, recursive=True),
            Volume(name="scratch", kind="empty", mode="1777", uid=1, gid=2, read_only=True),
            Volume(name="plain", kind="empty", mode="0755", uid=0, gid=0),
        ),
        isolators=(Isolator(name="resource/cpu", value={"limit": "1"}),),
        annotations=(("minit/stop-grace", "3"),),
        ports=(
            ExposedPort(
                name="http", host_port=80, host_ip="10.0.0.1", pod_port=Port(name="web", protocol="tcp", port=8080)
            ),
            ExposedPort(name="https", host_port=443),
        ),
        user_annotations=(("A", "1"), ("a", "2")),
        user_labels=(("any key", ""),),
    )
    assert manifest.annotation("minit/stop-grace") == "3"
    assert manifest.annotation("minit/keep-logs") is None
    assert manifest.apps[0].annotation("coreos.com/rkt/stage2/stdout") == "log"
    assert manifest.apps[1].annotation("coreos.com/rkt/stage2/stdout") is None


def test_null_means_absent() -> None:
    """Go writes absent lists, objects and options as null."""
    keys = ("volumes", "isolators", "annotations", "ports", "userAnnotations", "userLabels")
    assert parse(pod(**dict.fromkeys(keys))) == parse(pod())
    bare = runtime_app(**dict.fromkeys(("image", "app", "readOnlyRootFS", "mounts", "annotations")))
    assert parse(pod(apps=[bare])).apps == (RuntimeApp(name="web"),)
    options = dict.fromkeys(("readOnly", "recursive", "mode", "uid", "gid"))
    assert parse(pod(volumes=[host_volume(**options)])) == parse(pod(volumes=[host_volume()]))
    options = dict.fromkeys((*options, "source"))
    assert parse(pod(volumes=[empty_volume(**options)])) == parse(pod(volumes=[empty_volume()]))


def test_only_a_mutable_pod_may_have_no_apps() -> None:
    """Apps come to a mutable pod later; another would end before it began."""
    for value in ("true", "1"):
        mutable = {"name": "coreos.com/rkt/stage1/mutable", "value": value}
        assert parse(pod(apps=[], annotations=[mutable])).apps == ()
    mutable = {"name": "coreos.com/rkt/stage1/mutable", "value": "false"}
    message = "pod: apps: expected at least one app in a pod that is not mutable, got"
    assert refusal(pod(apps=[], annotations=[mutable])) == f"{message} []"
    assert refusal(pod(apps=None)) == f"{message} null"


@pytest.mark.parametrize("address", ["0.0.0.0", "192.168.1.2", "::", "fe80::1", "::ffff:1.2.3.4"])
def test_ports_may_be_bound_to_either_kind_of_address(address: str) -> None:
    """A host IP is IPv4 or IPv6."""
    (port,) = parse(pod(ports=[{"name": "p", "hostPort": 1, "hostIP": address}])).ports
    assert port.host_ip == address


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (pod(apps=[runtime_app(name="Foo Bar")]), 'apps[0].name: expected an ACName, got "Foo Bar"'),
        (pod(apps=[None]), "apps[0].name: expected an ACName, got nothing"),
        (pod(apps=["web"]), 'apps[0]: expected an object, got "web"'),
        (
            pod(apps=[runtime_app(), runtime_app()]),
            'apps[1].name: expected a unique name, got duplicate app name "web"',
        ),
        (
            pod(apps=[runtime_app(image={"id": "latest"})]),
            'apps[0].image.id: expected an image ID (sha512-...), got "latest"',
        ),
        (pod(apps=[runtime_app(app={})]), "apps[0].app.user: expected a non-empty string, got nothing"),
        (
            pod(apps=[runtime_app(mounts=[{"volume": "v", "path": ""}])]),
            'apps[0].mounts[0].path: expected a non-empty string, got ""',
        ),
        (
            pod(apps=[runtime_app(mounts=[{"volume": "v", "path": "/", "appVolume": {"kind": "x"}}])]),
            'apps[0].mounts[0].appVolume.kind: expected "host" or "empty", got "x"',
        ),
        (
            pod(volumes=[host_volume(), host_volume()]),
            'volumes[1].name: expected a unique name, got duplicate volume name "data"',
        ),
        (pod(volumes=[host_volume(source="srv")]), 'volumes[0].source: expected an absolute path, got "srv"'),
        (pod(volumes=[host_volume(source=None)]), "volumes[0].source: expected an absolute path, got null"),
        (
            pod(volumes=[host_volume(source="/a\0")]),
            'volumes[0].source: expected a string without NUL, got "/a\\u0000"',
        ),
        (
            pod(volumes=[host_volume(mode="0755")]),
            'volumes[0].mode: expected nothing in a volume of kind host, got "0755"',
        ),
        (pod(volumes=[host_volume(uid=0)]), "volumes[0].uid: expected nothing in a volume of kind host, got 0"),
        (pod(volumes=[host_volume(gid=0)]), "volumes[0].gid: expected nothing in a volume of kind host, got 0"),
        (
            pod(volumes=[empty_volume(source="/srv")]),
            'volumes[0].source: expected nothing in a volume of kind empty, got "/srv"',
        ),
        (pod(volumes=[empty_volume(mode="0888")]), 'volumes[0].mode: expected an octal mode like "0755", got "0888"'),
        (pod(volumes=[empty_volume(mode="17777")]), 'volumes[0].mode: expected an octal mode like "0755", got "17777"'),
        (pod(volumes=[empty_volume(mode="")]), 'volumes[0].mode: expected an octal mode like "0755", got ""'),
        (
            pod(volumes=[empty_volume(uid=4294967295)]),
            "volumes[0].uid: expected an integer from 0 to 4294967294, got 4294967295",
        ),
        (
            pod(ports=[{"name": "p", "hostPort": 65536}]),
            "ports[0].hostPort: expected an integer from 1 to 65535, got 65536",
        ),
        (
            pod(ports=[{"name": "p", "hostPort": 1, "hostIP": "10.0.0"}]),
            'ports[0].hostIP: expected an IP address, got "10.0.0"',
        ),
        (
            pod(ports=[{"name": "p", "hostPort": 1, "hostIP": "::\0"}]),
            'ports[0].hostIP: expected a string without NUL, got "::\\u0000"',
        ),
        (pod(userLabels=["a"]), 'userLabels: expected an object, got ["a"]'),
        (pod(userLabels={"a": 1}), "userLabels.a: expected a string, got 1"),
        (pod(userLabels={"a\nb": 1}), 'userLabels["a\\nb"]: expected a string, got 1'),
    ],
)
def test_a_bad_pod_is_refused_with_place_and_expectation(document: object, message: str) -> None:
    """One line: file, JSON path, what was expected, what was found."""
    assert refusal(document) == f"pod: {message}"


FULL_IMAGE: JsonObject = {
    "acKind": "ImageManifest",
    "acVersion": "0.8.11",
    "name": "web",
    "labels": [{"name": "os", "value": "linux"}, {"name": "arch", "value": "amd64"}],
    "dependencies": [{"imageName": "base", "imageID": IMAGE_ID, "size": 1}],
    "pathWhitelist": ["/bin"],
    "annotations": [{"name": "created", "value": ""}],
    "app": {
        "exec": ["/bin/web"],
        "user": "0",
        "group": "0",
        "supplementaryGIDs": [1],
        "workingDirectory": "/",
        "environment": [{"name": "A", "value": "b"}],
        "eventHandlers": [{"name": "pre-start", "exec": ["/x"]}],
        "mountPoints": [{"name": "m", "path": "/m", "readOnly": False}],
        "ports": [{"name": "p", "protocol": "tcp", "port": 80, "count": 1, "socketActivated": False}],
        "isolators": [{"name": "resource/cpu", "value": {}}],
    },
}

ATOMS = st.none() | st.booleans() | st.integers(-9, 99999) | st.floats() | st.text(max_size=4)
JUNK = st.recursive(
    ATOMS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


def places(value: object) -> list[tuple[Any, Any]]:
    """Return every (container, key or index) inside a JSON value."""
    found: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found.append((value, key))
        found.extend(places(item))
    return found


@st.composite
def mutated(draw: st.DrawFn, original: JsonObject) -> bytes:
    """Draw a manifest with some of its values replaced, removed, duplicated or its keys respelled."""
    document = json.loads(json.dumps(original))
    for _ in range(draw(st.integers(1, 3))):
        candidates = places(document)
        if not candidates:
            break
        container, key = draw(st.sampled_from(candidates))
        action = draw(st.sampled_from(["replace", "replace", "remove", "copy", "respell"]))
        if action == "replace":
            container[key] = draw(JUNK)
        elif action == "remove":
            del container[key]
        elif action == "copy" and isinstance(container, list):
            container.append(container[key])
        elif isinstance(container, dict):
            container[str(key).upper()] = container[key]
    return json.dumps(document).encode()


def read(data: bytes) -> None:
    """Read `data` as both kinds of manifest; anything but a value or a one-line ManifestError propagates."""
    for parse_manifest in (parse_pod_manifest, parse_image_manifest):
        try:
            hash(repr(parse_manifest(data, "file")))
        except ManifestError as error:
            assert str(error).startswith("file: ")
            assert str(error).isprintable()
            assert len(str(error)) < 500


@SEARCH
@given(mutated(FULL_POD) | mutated(FULL_IMAGE))
def test_a_mutated_manifest_is_read_or_refused(data: bytes) -> None:
    """Any error in a manifest is a ManifestError and nothing else."""
    read(data)


@SEARCH
@given(JUNK)
def test_arbitrary_json_is_read_or_refused(value: object) -> None:
    """No JSON value brings the readers down."""
    read(json.dumps(value).encode())
    read(json.dumps({"acKind": "PodManifest", "acVersion": "1.0.0", "apps": value, "volumes": value}).encode())
    read(json.dumps({"acKind": "ImageManifest", "acVersion": "1.0.0", "name": "x", "app": value}).encode())
