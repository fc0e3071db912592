"""Pod manifests made from images and overrides."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import ManifestError, MinitError, PodError
from minit.base.value import replace
from minit.manifest.app import Isolator
from minit.manifest.image import parse_image_manifest
from minit.manifest.pod import ExposedPort, Mount, Volume, parse_pod_manifest
from minit.stage0.images.storedimage import StoredImage
from minit.stage0.pods.appsection import AppOverrides, PodDefaults
from minit.stage0.pods.podmanifest import (
    complete_manifest,
    image_ids,
    merge_mounts,
    mount_target,
    plan_added_app,
    plan_apps,
    unused_volumes,
    with_app,
    without_app,
)

ID = "sha512-" + "a" * 64
DATA = Path("/var/lib/rkt")
DEFAULTS = PodDefaults(uid=1000, gid=1001, data=DATA)
NO_OVERRIDES = AppOverrides()

APP: dict[str, Any] = {
    "exec": ["/bin/server", "-v"],
    "eventHandlers": [{"name": "pre-start", "exec": ["/bin/hook"]}],
    "user": "www",
    "group": "/etc/group",
    "supplementaryGIDs": [5],
    "workingDirectory": "/srv",
    "environment": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
    "mountPoints": [{"name": "data", "path": "/data", "readOnly": True}, {"name": "tmp", "path": "/tmp"}],
    "ports": [{"name": "http", "protocol": "tcp", "port": 80, "count": 1, "socketActivated": False}],
    "isolators": [{"name": "resource/memory", "value": {"limit": "1G"}}],
}


def image(name: str = "example.com/Server_x", app: dict[str, Any] | None = APP, **labels: str) -> StoredImage:
    """Return an image of the store."""
    chosen = labels or {"version": "1.0", "os": "linux", "arch": "amd64"}
    manifest: dict[str, Any] = {
        "acKind": "ImageManifest",
        "acVersion": "0.8.11",
        "name": name.lower(),
        "labels": [{"name": key, "value": value} for key, value in chosen.items()],
    }
    if app is not None:
        manifest["app"] = app
    data = json.dumps(manifest).encode()
    return StoredImage(
        id=ID,
        manifest=parse_image_manifest(data, name),
        manifest_bytes=data,
        size_bytes=1,
        import_time_ns=0,
        last_used_ns=0,
    )


def plan_one(chosen: StoredImage, overrides: AppOverrides = NO_OVERRIDES, defaults: PodDefaults = DEFAULTS) -> Any:
    """Return the only app of a new pod's manifest."""
    _, data = plan_apps([(chosen, overrides)], defaults)
    [app] = json.loads(data)["apps"]
    return app


def test_manifest_of_one_app() -> None:
    """Without overrides the app section is the image's, and the pod has everything rkt writes, in its order."""
    apps, data = plan_apps([(image(), AppOverrides())], DEFAULTS)
    assert [app.name for app in apps] == ["server-x"]
    assert (
        data
        == json.dumps(
            {
                "acVersion": "0.8.11",
                "acKind": "PodManifest",
                "apps": [
                    {
                        "name": "server-x",
                        "image": {
                            "name": "example.com/server_x",
                            "id": ID,
                            "labels": [
                                {"name": "version", "value": "1.0"},
                                {"name": "os", "value": "linux"},
                                {"name": "arch", "value": "amd64"},
                            ],
                        },
                        "app": {
                            "exec": APP["exec"],
                            "user": "www",
                            "group": "/etc/group",
                            **{key: APP[key] for key in APP if key not in ("exec", "user", "group")},
                        },
                    }
                ],
                "volumes": None,
                "isolators": None,
                "annotations": [
                    {"name": "coreos.com/rkt/stage1/mutable", "value": "false"},
                    {"name": "minit/dns", "value": "host"},
                    {"name": "minit/pod-names", "value": "true"},
                    {"name": "minit/seccomp-errno", "value": "EPERM"},
                ],
                "ports": None,
            },
            separators=(",", ":"),
        ).encode()
    )


def test_manifest_reads_back() -> None:
    """stage1's own reader takes what is written, and finds the image's app in it."""
    chosen = image()
    pod = parse_pod_manifest(plan_apps([(chosen, AppOverrides())], DEFAULTS)[1], "pod")
    assert pod.apps[0].app == chosen.manifest.app
    assert pod.apps[0].image_id == ID


def test_overrides() -> None:
    """Each override replaces what the image says; arguments follow the new program."""
    overrides = AppOverrides(
        name="other",
        exec="/bin/sh",
        arguments=("-c", "true"),
        user="7",
        group="8",
        working_directory="/",
        supplementary_gids=(),
    )
    entry = plan_one(image(), overrides)
    app = entry["app"]
    assert entry["name"] == "other"
    assert app["exec"] == ["/bin/sh", "-c", "true"]
    assert (app["user"], app["group"], app["workingDirectory"]) == ("7", "8", "/")
    assert "supplementaryGIDs" not in app
    assert app["isolators"] == APP["isolators"]


def test_arguments_are_appended_to_the_image_command() -> None:
    """Without --exec, arguments follow the image's own."""
    assert plan_one(image(), AppOverrides(arguments=("-p", "1")))["app"]["exec"] == ["/bin/server", "-v", "-p", "1"]


def test_exec_makes_an_app_of_an_image_without_one() -> None:
    """An image without app section runs --exec as the caller."""
    app = plan_one(image(app=None), AppOverrides(exec="/bin/sh", arguments=("x",)))["app"]
    assert app == {"exec": ["/bin/sh", "x"], "user": "1000", "group": "1001"}


@pytest.mark.parametrize(
    ("app", "message"),
    [
        (None, 'image "example.com/server_x" has no "app" section (try --exec=BINARY)'),
        ({**APP, "exec": []}, 'image "example.com/server_x" has an empty "exec" (try --exec=BINARY)'),
    ],
)
def test_nothing_to_execute(app: dict[str, Any] | None, message: str) -> None:
    """An image that says nothing about what to run needs --exec, arguments or not."""
    with pytest.raises(PodError) as caught:
        plan_one(image(app=app), AppOverrides(arguments=("x",)))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"version": "1"}, 'image "a" has no label "os": the image of an app needs "os" and "arch"'),
        ({"os": "linux"}, 'image "a" has no label "arch": the image of an app needs "os" and "arch"'),
        ({"os": "freebsd", "arch": "amd64"}, 'image "a" is for freebsd: apps run on linux only'),
    ],
)
def test_platform(labels: dict[str, str], message: str) -> None:
    """The image of an app must say that it is for Linux, and for which machine."""
    with pytest.raises(PodError) as caught:
        plan_one(image("a", APP, **labels))
    assert str(caught.value) == message


def test_two_apps_of_one_name() -> None:
    """Two apps of one image need different names."""
    both = [(image(), AppOverrides()), (image(), AppOverrides())]
    with pytest.raises(PodError, match='several apps are named "server-x"'):
        plan_apps(both, DEFAULTS)
    named = [(image(), AppOverrides()), (image(), AppOverrides(name="second"))]
    assert [app.name for app in plan_apps(named, DEFAULTS)[0]] == ["server-x", "second"]


def test_bad_name() -> None:
    """A name that is no ACName is refused before it becomes a path."""
    with pytest.raises(ManifestError, match="--name"):
        plan_one(image(), AppOverrides(name="../x"))


def user_manifest(**app: Any) -> bytes:
    """Return a pod manifest with oddities that a rewrite would lose."""
    entry = {"name": "one", "image": {"id": ID}, **app}
    pod = {"acKind": "PodManifest", "acVersion": "1.30.0", "apps": [entry], "x-mine": 1, "userLabels": {"a": "b"}}
    return json.dumps(pod, indent=2).encode()


def test_complete_user_manifest_stays_as_it_is() -> None:
    """A user's manifest with every app section is copied byte for byte."""
    data = user_manifest(app=APP)
    assert image_ids(data, "m") == (("one", ID),)
    assert complete_manifest(data, "m", {"one": image()}) == data


@pytest.mark.parametrize("missing", [{}, {"app": None}, {"App": None}])
def test_user_manifest_gets_missing_app_sections(missing: dict[str, Any]) -> None:
    """An app without section gets its image's, and nothing else changes."""
    completed = json.loads(complete_manifest(user_manifest(**missing), "m", {"one": image()}))
    expected = json.loads(user_manifest())
    expected["apps"][0]["app"] = APP
    assert completed == expected


def test_user_manifest_that_cannot_be_completed() -> None:
    """An app with no section anywhere is refused."""
    with pytest.raises(PodError, match='m: app "one" has no "app" section'):
        complete_manifest(user_manifest(), "m", {"one": image(app=None)})


def test_user_manifest_without_image_id() -> None:
    """An app must name its image by id."""
    data = json.dumps({"acKind": "PodManifest", "acVersion": "1.0.0", "apps": [{"name": "a", "image": {}}]}).encode()
    with pytest.raises(PodError, match='m: app "a" has no image.id'):
        image_ids(data, "m")


def mounts(*pairs: tuple[str, str]) -> tuple[Mount, ...]:
    """Return mounts of volumes at paths."""
    return tuple(Mount(volume=volume, path=path) for volume, path in pairs)


def test_manifest_with_everything() -> None:
    """Options about pod and app are in the manifest as rkt writes it, field by field."""
    overrides = AppOverrides(
        name="web",
        read_only_root_fs=True,
        mounts=mounts(("data", "/own")),
        isolators=(Isolator(name="os/linux/cpu-shares", value=512),),
        annotations=(("example.com/a", "1"), ("coreos.com/rkt/stage2/stdin", "null"), ("example.com/a", "2")),
        user_annotations=(("K", "v"),),
        user_labels=(("l", ""),),
        stdin="stream",
        stderr="null",
    )
    defaults = PodDefaults(
        uid=0,
        gid=0,
        data=DATA,
        volumes=(
            Volume(name="data", kind="host", source="/srv", read_only=False, recursive=True),
            Volume(name="tmp", kind="empty", mode="0700", uid=0, gid=7),
            Volume(name="plain", kind="host", source="/x"),
        ),
        mounts=mounts(("tmp", "/own/"), ("tmp", "/shared")),
        ports=(ExposedPort(name="http", host_port=8080), ExposedPort(name="http", host_port=80, host_ip="10.0.0.1")),
    )
    data = plan_apps([(image(), overrides)], defaults)[1].decode()
    section = plan_one(image(), overrides, defaults)["app"]
    assert section["isolators"] == [*APP["isolators"], {"name": "os/linux/cpu-shares", "value": 512}]
    assert (section["userAnnotations"], section["userLabels"]) == ({"K": "v"}, {"l": ""})
    assert data.split('"userLabels":{"l":""}}')[1] == (
        ',"readOnlyRootFS":true,"mounts":[{"volume":"data","path":"/own"},{"volume":"tmp","path":"/shared"}],'
        '"annotations":[{"name":"example.com/a","value":"2"},{"name":"coreos.com/rkt/stage2/stdin","value":"stream"},'
        '{"name":"coreos.com/rkt/stage2/stderr","value":"null"}]}],'
        '"volumes":[{"name":"data","kind":"host","source":"/srv","readOnly":false,"recursive":true},'
        '{"name":"tmp","kind":"empty","mode":"0700","uid":0,"gid":7},{"name":"plain","kind":"host","source":"/x"}],'
        '"isolators":null,"annotations":[{"name":"coreos.com/rkt/stage1/mutable","value":"false"},'
        '{"name":"minit/dns","value":"host"},'
        '{"name":"minit/pod-names","value":"true"},{"name":"minit/seccomp-errno","value":"EPERM"}],'
        '"ports":[{"name":"http","hostPort":8080},{"name":"http","hostPort":80,"hostIP":"10.0.0.1"}]}'
    )


def test_volumes_that_nothing_mounts() -> None:
    """A volume is used by a mount or by a mount point of its name."""
    volumes = tuple(Volume(name=name, kind="host", source="/x") for name in ("data", "tmp", "shared", "spare"))
    defaults = PodDefaults(uid=0, gid=0, data=DATA, volumes=volumes, mounts=mounts(("shared", "/s")))
    assert unused_volumes(plan_apps([(image(), NO_OVERRIDES)], defaults)[1]) == ("spare",)
    assert unused_volumes(plan_apps([(image(), NO_OVERRIDES)], DEFAULTS)[1]) == ()


def test_ports_are_checked() -> None:
    """A port that no app has is refused, naming the option."""
    with pytest.raises(PodError, match='--port: no app has a port named "ftp"'):
        ports = (ExposedPort(name="ftp", host_port=21),)
        plan_apps([(image(), NO_OVERRIDES)], PodDefaults(uid=0, gid=0, data=DATA, ports=ports))


PATHS = st.lists(st.sampled_from(["/a", "a", "/a/", "//a", "/b", "/b/../a", "/", "/c"]), max_size=4)


@given(PATHS, PATHS)
def test_own_mounts_come_first_and_win(own: list[str], shared: list[str]) -> None:
    """An app has all of its own mounts, then those for all apps whose target its own leave free."""
    own_mounts, shared_mounts = mounts(*(("o", path) for path in own)), mounts(*(("s", path) for path in shared))
    merged = merge_mounts(own_mounts, shared_mounts)
    assert merged[: len(own)] == own_mounts
    taken = {mount_target(mount) for mount in own_mounts}
    assert merged[len(own) :] == tuple(mount for mount in shared_mounts if mount_target(mount) not in taken)


@given(st.binary())
def test_any_manifest_is_read_or_refused(data: bytes) -> None:
    """For any file the only exception is one with a message."""
    with pytest.raises(MinitError):
        image_ids(data, "m")


MUTABLE = replace(DEFAULTS, is_mutable=True)
SANDBOX = plan_apps([], MUTABLE)[1]


def test_a_sandbox() -> None:
    """It is mutable whatever the user says, and empty."""
    given = (("coreos.com/rkt/stage1/mutable", "false"), ("a", "b"))
    _, data = plan_apps([], replace(MUTABLE, annotations=given, user_annotations=(("u", "v"),)))
    pod = parse_pod_manifest(data, "pod")
    assert (pod.is_mutable, pod.apps, pod.annotation("a"), pod.user_annotations) == (True, (), "b", (("u", "v"),))


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcd")), max_size=12))
def test_apps_come_and_go(changes: list[tuple[bool, str]]) -> None:
    """A manifest has the apps that were added and not removed, in that order, and all else as it was."""
    strange = {**json.loads(SANDBOX), "apps": None, "unknown": {"kept": [1, "two"]}}
    data = json.dumps(strange).encode()
    expected: list[str] = []
    for added, name in changes:
        if not added:
            data = without_app(data, "pod", name)
            expected = [each for each in expected if each != name]
        elif name not in expected:
            overrides = AppOverrides(name=name)
            _, entry = plan_added_app(parse_pod_manifest(data, "pod"), image(), overrides, DEFAULTS)
            data = with_app(data, "pod", entry)
            expected.append(name)
    manifest = json.loads(data)
    assert [app["name"] for app in manifest.pop("apps") or []] == expected
    assert manifest == {key: value for key, value in strange.items() if key != "apps"}


def test_an_app_is_added_once() -> None:
    """A second one of a name is refused."""
    _, entry = plan_added_app(parse_pod_manifest(SANDBOX, "pod"), image(), NO_OVERRIDES, DEFAULTS)
    with pytest.raises(PodError, match="multiple apps with name server-x"):
        plan_added_app(parse_pod_manifest(with_app(SANDBOX, "pod", entry), "pod"), image(), NO_OVERRIDES, DEFAULTS)


@pytest.mark.parametrize("name", ["server-x-created", "server-x-started"])
def test_an_app_is_not_named_like_a_marker(name: str) -> None:
    """The marker of one app's addition or start would be the status of the other."""
    for first, second in ((name, "server-x"), ("server-x", name)):
        _, entry = plan_added_app(parse_pod_manifest(SANDBOX, "pod"), image(), AppOverrides(name=first), DEFAULTS)
        pod = parse_pod_manifest(with_app(SANDBOX, "pod", entry), "pod")
        with pytest.raises(PodError, match="cannot be in a pod with app"):
            plan_added_app(pod, image(), AppOverrides(name=second), DEFAULTS)


@pytest.mark.parametrize(
    ("overrides", "command"),
    [
        (AppOverrides(only_arguments=True), ["/bin/server", "-v"]),
        (AppOverrides(only_arguments=True, arguments=("-x",)), ["/bin/server", "-x"]),
        (AppOverrides(only_arguments=True, arguments=("-x",), exec="/sh"), ["/sh", "-x"]),
    ],
)
def test_arguments_of_an_added_app(overrides: AppOverrides, command: list[str]) -> None:
    """They stand in for those of the image, if there are any."""
    _, entry = plan_added_app(parse_pod_manifest(SANDBOX, "pod"), image(), overrides, DEFAULTS)
    assert entry["app"]["exec"] == command  # type: ignore[index]


def test_mounts_of_an_added_app() -> None:
    """A volume is the pod's or the app's own, and two mounts have two targets."""
    own = Mount(volume="a", path="/a", app_volume=Volume(name="a", kind="host", source="/x"))
    pod = parse_pod_manifest(SANDBOX, "pod")
    with pytest.raises(PodError, match='the pod has no volume "b"'):
        plan_added_app(pod, image(), AppOverrides(mounts=(own, Mount(volume="b", path="/b"))), DEFAULTS)
    with pytest.raises(PodError, match="several mounts of the app have the target /a"):
        plan_added_app(pod, image(), AppOverrides(mounts=(own, own)), DEFAULTS)
    _, entry = plan_added_app(pod, image(), AppOverrides(mounts=(own,)), DEFAULTS)
    again = parse_pod_manifest(with_app(SANDBOX, "pod", entry), "pod")
    assert again.apps[0].mounts == (own,)


# What an image may ask for. The annotation tells stage1 that what is beyond the default is the user's.

CAPABILITIES, RETAINED = "os/linux/capabilities-retain-set", "os/linux/seccomp-retain-set"
REMOVED = "os/linux/seccomp-remove-set"
ADMIN = {"name": CAPABILITIES, "value": {"set": ["CAP_SYS_ADMIN", "CAP_CHOWN", "CAP_BPF"]}}
ALL_CALLS = {"name": RETAINED, "value": {"set": ["@appc.io/all"]}}
BEYOND: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "capabilities": (ADMIN, f"{CAPABILITIES} (CAP_SYS_ADMIN CAP_BPF)", "--caps-retain", "capabilities"),
    "all-calls": (ALL_CALLS, f"{RETAINED} (every system call)", "--seccomp", "seccomp"),
    "some-calls": (
        {"name": RETAINED, "value": {"set": ["@rkt/default-whitelist", "bpf", "mount", "umount2", "x"]}},
        f"{RETAINED} (bpf, mount, umount2 and 1 more)",
        "--seccomp",
        "seccomp",
    ),
    "blacklist": (
        {"name": REMOVED, "value": {"set": ["bpf", "mount"]}},
        f"{REMOVED} (every system call but 2)",
        "--seccomp",
        "seccomp",
    ),
    "score": ({"name": "os/linux/oom-score-adj", "value": -1}, "os/linux/oom-score-adj (-1)", "--oom-score-adj", "x"),
    "shares": ({"name": "os/linux/cpu-shares", "value": 1025}, "os/linux/cpu-shares (1025)", "--cpu-shares", "x"),
}
WITHIN: list[dict[str, Any]] = [
    {"name": CAPABILITIES, "value": {"set": ["CAP_CHOWN", "CAP_MKNOD"]}},
    {"name": RETAINED, "value": {"set": ["@rkt/default-whitelist", "statx"], "errno": "EPERM"}},
    {"name": "os/linux/oom-score-adj", "value": 1000},
    {"name": "os/linux/cpu-shares", "value": 1024},
    {"name": "os/linux/no-new-privileges", "value": True},
]
TRUSTED = [{"name": "minit/trusted-isolators", "value": "true"}]


CHECK = {"exec": ["/bin/check"], "interval": "5s"}
USUAL = {"asApp": True, "interval": "30s", "timeout": "30s", "failures": 3, "action": "none"}


@pytest.mark.parametrize(
    ("of_image", "own", "check"),
    [
        (CHECK, {}, {**USUAL, **CHECK}),
        (CHECK, {"failures": 9, "asApp": True}, {**USUAL, **CHECK, "failures": 9}),
        (CHECK, {"exec": ["/own"], "asApp": True}, {**USUAL, **CHECK, "exec": ["/own"]}),
        (None, {"exec": ["/own"], "asApp": True}, {**USUAL, "exec": ["/own"]}),
        (CHECK, {"exec": ["/own"]}, {"exec": ["/own"]}),
        (None, {}, None),
    ],
)
def test_checks_as_docker_has_them(of_image: Any, own: Any, check: Any) -> None:
    """The check of an image counts with the fields that the user chooses, and can be left out."""
    chosen = image()
    annotations = () if of_image is None else (("appc.io/docker/healthcheck", json.dumps(of_image)),)
    chosen = replace(chosen, manifest=replace(chosen.manifest, annotations=annotations))
    given = (("minit/health", json.dumps({"liveness": own})),) if own else ()

    def planned(**fields: Any) -> Any:
        app = plan_one(chosen, AppOverrides(annotations=given, **fields))
        found = {each["name"]: each["value"] for each in app.get("annotations", [])}
        return json.loads(found["minit/health"])["liveness"] if "minit/health" in found else None

    assert planned() == check
    assert planned(ignores_healthcheck=True) == (own or None)


@pytest.mark.parametrize("text", ['{"action": "stop-pod"}', '{"asApp": false}', "[]", "{"])
def test_checks_of_hostile_images(text: str) -> None:
    """An image says how it is checked, and neither as whom nor what follows."""
    chosen = image()
    annotations = (("appc.io/docker/healthcheck", text),)
    chosen = replace(chosen, manifest=replace(chosen.manifest, annotations=annotations))
    with pytest.raises(MinitError, match="healthcheck"):
        plan_one(chosen)


def image_with(*isolators: dict[str, Any]) -> StoredImage:
    """Return an image whose app has these isolators."""
    return image(app={**APP, "isolators": list(isolators)})


def plan_in_each_way(chosen: StoredImage, overrides: AppOverrides, defaults: PodDefaults) -> Iterator[Any]:
    """Yield the app of a new pod, and one that is added to a pod, as they stand in its manifest."""
    yield plan_one(chosen, overrides, defaults)
    yield plan_added_app(parse_pod_manifest(SANDBOX, "pod"), chosen, overrides, defaults)[1]


@pytest.mark.parametrize(("isolator", "wanted", "option", "insecure"), BEYOND.values(), ids=BEYOND)
def test_an_image_that_asks_for_more(isolator: dict[str, Any], wanted: str, option: str, insecure: str) -> None:
    """One line names the isolator, what it asks for, and both ways to have it; trusting the image is one."""
    chosen = image_with(WITHIN[-1], isolator)
    for ways in (plan_in_each_way(chosen, NO_OVERRIDES, DEFAULTS), complete_in_turn(chosen, frozenset())):
        with pytest.raises(PodError) as caught:
            next(ways)
        assert str(caught.value) == (
            f'image "example.com/server_x" asks for more than an app has by default: {wanted}: say it yourself'
            f" ({option}), or trust the image (--insecure-options=image-isolators)"
        )
    for words in ({"image-isolators"}, {insecure} - {"x"}):
        if words:
            trusting = replace(DEFAULTS, insecure=frozenset(words))
            for entry in (
                *plan_in_each_way(chosen, NO_OVERRIDES, trusting),
                *complete_in_turn(chosen, trusting.insecure),
            ):
                assert entry["annotations"][-1:] == TRUSTED
                assert isolator in entry["app"]["isolators"]


def complete_in_turn(chosen: StoredImage, insecure: frozenset[str]) -> Iterator[Any]:
    """Yield the app of a user's manifest that leaves its section to the image."""
    [entry] = json.loads(complete_manifest(user_manifest(), "m", {"one": chosen}, insecure))["apps"]
    yield entry


def test_several_reasons_are_one_line() -> None:
    """All that an image asks for is named at once, and one kind of insecurity does not allow another."""
    with pytest.raises(PodError) as caught:
        plan_one(image_with(ADMIN, ALL_CALLS), defaults=replace(DEFAULTS, insecure=frozenset({"paths"})))
    assert f"{CAPABILITIES} (CAP_SYS_ADMIN CAP_BPF) and {RETAINED} (every system call)" in str(caught.value)
    assert "(--caps-retain, --seccomp)" in str(caught.value)
    with pytest.raises(PodError, match=RETAINED):
        plan_one(image_with(ADMIN, ALL_CALLS), defaults=replace(DEFAULTS, insecure=frozenset({"capabilities"})))


def test_an_image_that_asks_for_less() -> None:
    """It needs nobody's leave, and nothing is said to stage1."""
    for entry in plan_in_each_way(image_with(*WITHIN), NO_OVERRIDES, DEFAULTS):
        assert "annotations" not in entry


@pytest.mark.parametrize("name", ["capabilities", "all-calls", "blacklist", "score", "shares"])
def test_a_user_may_ask_for_the_same(name: str) -> None:
    """An option in the place of the image's isolator is the user's, even if it says the same."""
    isolator = BEYOND[name][0]
    own = Isolator(name=isolator["name"], value=isolator["value"])
    for entry in plan_in_each_way(image_with(isolator), AppOverrides(isolators=(own,)), DEFAULTS):
        assert (entry["app"]["isolators"], entry["annotations"]) == ([isolator], TRUSTED)


def test_a_user_may_take_away_what_an_image_asks_for() -> None:
    """An isolator that replaces the image's decides alone."""
    own = Isolator(name="os/linux/capabilities-remove-set", value={"set": ["CAP_CHOWN"]})
    for entry in plan_in_each_way(image_with(ADMIN), AppOverrides(isolators=(own,)), DEFAULTS):
        assert "annotations" not in entry
