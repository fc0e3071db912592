"""minit.manifest.image and .app: the schema of an image and of its app section."""

from __future__ import annotations

import json
from typing import Any

import pytest

from minit.base.errors import ManifestError
from minit.manifest.app import App, EventHandler, Isolator, MountPoint, Port
from minit.manifest.image import Dependency, ImageManifest, parse_image_manifest

JsonObject = dict[str, Any]
IMAGE_ID = "sha512-" + "0a" * 32


def image(**fields: object) -> JsonObject:
    """Return the least an image manifest needs, with `fields` on top."""
    return {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": "example.com/web", **fields}


def app(**fields: object) -> JsonObject:
    """Return the least an app section needs, with `fields` on top."""
    return {"exec": ["/bin/sh"], "user": "0", "group": "0", **fields}


def parse(document: object) -> ImageManifest:
    """Parse `document` as the file `image`."""
    return parse_image_manifest(json.dumps(document).encode(), "image")


def parse_app(**fields: object) -> App:
    """Parse an image whose app section has `fields`, and return that section."""
    section = parse(image(app=app(**fields))).app
    assert section is not None
    return section


def refusal(document: object) -> str:
    """Return the message with which `document` is refused."""
    with pytest.raises(ManifestError) as caught:
        parse(document)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_full_image_manifest_becomes_values() -> None:
    """Every field of the schema arrives, in the order of the file."""
    manifest = parse(
        image(
            labels=[{"name": "version", "value": "1.2"}, {"name": "os", "value": "linux"}],
            annotations=[{"name": "appc.io/docker/repository", "value": "library/web"}],
            dependencies=[
                {"imageName": "base", "imageID": IMAGE_ID, "labels": [{"name": "v", "value": "1"}], "size": 9},
                {"imageName": "other"},
            ],
            pathWhitelist=["/bin/sh"],
            app={
                "exec": ["/bin/web", "", "two\nlines"],
                "user": "www",
                "group": "/etc/passwd",
                "supplementaryGIDs": [10, 0],
                "workingDirectory": "/srv",
                "environment": [{"name": "B.-_", "value": ""}, {"name": "A", "value": "x\ny"}],
                "eventHandlers": [{"name": "post-stop", "exec": ["/bin/bye"]}, {"name": "pre-start", "exec": []}],
                "mountPoints": [{"name": "data", "path": "/data", "readOnly": True}, {"name": "data"}],
                "ports": [{"name": "http", "protocol": "tcp", "port": 80, "count": 2, "socketActivated": True}],
                "isolators": [{"name": "resource/memory", "value": {"limit": "4M"}}, {"name": "odd"}],
                "userAnnotations": {"team": "web"},
            },
        )
    )
    assert manifest == ImageManifest(
        ac_version="0.8.11",
        name="example.com/web",
        labels=(("version", "1.2"), ("os", "linux")),
        annotations=(("appc.io/docker/repository", "library/web"),),
        dependencies=(
            Dependency(image_name="base", image_id=IMAGE_ID, labels=(("v", "1"),), size=9),
            Dependency(image_name="other"),
        ),
        path_whitelist=("/bin/sh",),
        app=App(
            exec=("/bin/web", "", "two\nlines"),
            user="www",
            group="/etc/passwd",
            supplementary_gids=(10, 0),
            working_directory="/srv",
            environment=(("B.-_", ""), ("A", "x\ny")),
            event_handlers=(
                EventHandler(name="post-stop", exec=("/bin/bye",)),
                EventHandler(name="pre-start", exec=()),
            ),
            mount_points=(MountPoint(name="data", path="/data", read_only=True), MountPoint(name="data", path="")),
            ports=(Port(name="http", protocol="tcp", port=80, count=2, socket_activated=True),),
            isolators=(Isolator(name="resource/memory", value={"limit": "4M"}), Isolator(name="odd", value=None)),
            user_annotations=(("team", "web"),),
        ),
    )
    assert manifest.label("version") == "1.2"
    assert manifest.label("arch") is None
    assert manifest.annotation("appc.io/docker/repository") == "library/web"
    assert manifest.annotation("version") is None


def test_absent_and_null_fields_mean_the_defaults() -> None:
    """Go writes lists that nobody set as null, and ports that nobody counted as 0."""
    lists = ("labels", "app", "annotations", "dependencies", "pathWhitelist")
    assert parse(image(**dict.fromkeys(lists))) == parse(image())
    keys = ("supplementaryGIDs", "workingDirectory", "environment", "eventHandlers", "mountPoints", "ports")
    assert parse_app(**dict.fromkeys((*keys, "isolators", "exec"))) == App(exec=(), user="0", group="0")
    assert parse_app(workingDirectory="").working_directory == ""
    (port,) = parse_app(ports=[{"name": "p", "protocol": "udp", "port": 1, "count": 0, "socketActivated": None}]).ports
    assert port == Port(name="p", protocol="udp", port=1, count=1, socket_activated=False)


def test_keys_match_in_any_case_and_unknown_ones_are_ignored() -> None:
    """As in Go's decoder, whose folding takes the Kelvin sign and the long s for ASCII letters."""
    assert parse_app(supplementaryGids=[5]).supplementary_gids == (5,)
    assert parse({"ACKIND": "ImageManifest", "acversion": "1.0.0", "Name": "x", "nonsense": 1}).name == "x"
    assert parse({"ac\u212aind": "ImageManifest", "acVer\u017fion": "1.0.0", "name": "x"}).name == "x"


def test_a_key_in_two_spellings_is_refused() -> None:
    """The one that counts would depend on the reader."""
    assert refusal(image(app=app(User="1"))) == 'image: app: expected each field once, got "User" in two spellings'


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "image: expected an object, got []"),
        (None, 'image: acKind: expected "ImageManifest", got nothing'),
        (image(acKind="PodManifest"), 'image: acKind: expected "ImageManifest", got "PodManifest"'),
        (image(acVersion="1"), 'image: acVersion: expected a semantic version, got "1"'),
        (image(name="Web"), 'image: name: expected an ACIdentifier, got "Web"'),
        (image(name=None), "image: name: expected an ACIdentifier, got null"),
        (image(labels={}), "image: labels: expected a list, got {}"),
        (image(labels=[{"name": "a"}]), "image: labels[0].value: expected a string, got nothing"),
        (
            image(labels=[{"name": "name", "value": "x"}]),
            'image: labels[0].name: expected a label other than the image\'s name, got "name"',
        ),
        (
            image(labels=[{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]),
            'image: labels[1].name: expected a unique name, got duplicate label name "a"',
        ),
        (
            image(labels=[{"name": "os", "value": "linux"}, {"name": "arch", "value": "sparc"}]),
            'image: labels: expected an os and arch that appc knows, got "linux/sparc"',
        ),
        (
            image(labels=[{"name": "os", "value": "plan9"}]),
            'image: labels: expected an os and arch that appc knows, got "plan9"',
        ),
        (
            image(annotations=[{"name": "a", "value": "1"}] * 2),
            'image: annotations[1].name: expected a unique name, got duplicate annotation name "a"',
        ),
        (
            image(dependencies=[{"imageName": "a", "imageID": "sha512-../../x"}]),
            'image: dependencies[0].imageID: expected an image ID (sha512-...), got "sha512-../../x"',
        ),
        (image(pathWhitelist=[1]), "image: pathWhitelist[0]: expected a string, got 1"),
    ],
)
def test_a_bad_image_is_refused_with_place_and_expectation(document: object, message: str) -> None:
    """One line: file, JSON path, what was expected, what was found."""
    assert refusal(document) == message


def port(**fields: object) -> JsonObject:
    """Return an app section with one port that has `fields`."""
    return {"ports": [{"name": "p", "protocol": "tcp", "port": 80, **fields}]}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"exec": "/bin/sh"}, 'exec: expected a list, got "/bin/sh"'),
        ({"exec": ["/bin/sh", "a\0b"]}, 'exec[1]: expected a string without NUL, got "a\\u0000b"'),
        ({"user": ""}, 'user: expected a non-empty string, got ""'),
        ({"group": 0}, "group: expected a non-empty string, got 0"),
        ({"user": "a\0"}, 'user: expected a string without NUL, got "a\\u0000"'),
        ({"workingDirectory": "srv"}, 'workingDirectory: expected an absolute path or an empty string, got "srv"'),
        ({"supplementaryGIDs": [True]}, "supplementaryGIDs[0]: expected an integer from 0 to 4294967294, got true"),
        ({"supplementaryGIDs": [-1]}, "supplementaryGIDs[0]: expected an integer from 0 to 4294967294, got -1"),
        (
            {"environment": [{"name": "1=A", "value": ""}]},
            'environment[0].name: expected the name of an environment variable, got "1=A"',
        ),
        (
            {"environment": [{"name": "A", "value": "\0"}]},
            'environment[0].value: expected a string without NUL, got "\\u0000"',
        ),
        (
            {"environment": [{"name": "A", "value": ""}] * 2},
            'environment[1].name: expected a unique name, got duplicate environment variable name "A"',
        ),
        (
            {"eventHandlers": [{"name": "on-fire", "exec": []}]},
            'eventHandlers[0].name: expected "pre-start" or "post-stop", got "on-fire"',
        ),
        (
            {"eventHandlers": [{"name": "pre-start", "exec": []}] * 2},
            'eventHandlers[1].name: expected a unique name, got duplicate event handler name "pre-start"',
        ),
        ({"mountPoints": [{"path": "/x"}]}, "mountPoints[0].name: expected an ACName, got nothing"),
        (
            {"mountPoints": [{"name": "m", "readOnly": "yes"}]},
            'mountPoints[0].readOnly: expected true or false, got "yes"',
        ),
        (port(port=0), "ports[0].port: expected an integer from 1 to 65535, got 0"),
        (port(port=80.5), "ports[0].port: expected an integer from 1 to 65535, got 80.5"),
        (port(port=65535, count=2), "ports[0].count: expected an integer from 0 to 1, got 2"),
        (port(protocol=None), "ports[0].protocol: expected a non-empty string, got null"),
        ({"isolators": [{"value": 1}]}, "isolators[0].name: expected an ACIdentifier, got nothing"),
        (
            {"isolators": [{"name": "os/linux/cpu-shares", "value": 2}] * 2},
            "isolators: expected at most one os/linux/cpu-shares, got 2",
        ),
        (
            {"isolators": [{"name": "os/linux/seccomp-retain-set"}, {"name": "os/linux/seccomp-remove-set"}]},
            "isolators: expected at most one seccomp isolator, "
            "got os/linux/seccomp-retain-set and os/linux/seccomp-remove-set",
        ),
    ],
)
def test_a_bad_app_section_is_refused_with_place_and_expectation(fields: JsonObject, message: str) -> None:
    """Ranges, grammars, uniqueness and types of the app section."""
    assert refusal(image(app=app(**fields))) == f"image: app.{message}"


def test_a_port_range_may_end_at_the_last_port() -> None:
    """Port and count add up to 65536 at most."""
    assert parse_app(**port(port=65535, count=1)).ports[0].count == 1
    assert parse_app(**port(port=1, count=65535)).ports[0].count == 65535


def test_isolators_that_add_up_may_repeat() -> None:
    """Several capability sets are one app's union; only some isolators are single."""
    isolators = [{"name": "os/linux/capabilities-retain-set", "value": {"set": ["CAP_KILL"]}}] * 2
    assert len(parse_app(isolators=isolators).isolators) == 2


def test_the_value_in_a_message_is_shortened() -> None:
    """A message stays one readable line however large the value."""
    message = refusal(image(name=["x" * 100_000, "\n"]))
    assert message == f'image: name: expected an ACIdentifier, got ["{"x" * 55}...'
