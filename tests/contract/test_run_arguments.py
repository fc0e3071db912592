"""The input of `run`: its flags, its environment and the manifests, and its refusals."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.support.pods import MakePod, PodDirectory, app_section, shell
from tests.support.refusals import assert_nothing_left, assert_refused

EVERY_FLAG_OFF = (
    *("--debug=false", "-interactive=0", "--mutable=F", "-private-users", "", "--mds-token="),
    *("--dns-conf-mode=resolv=default,hosts=default", "--disable-capabilities-restriction=FALSE"),
    *("-disable-paths=f", "--disable-seccomp=False", "--ipc=auto"),
)


@pytest.mark.parametrize(
    "hostname", [("--hostname=tree",), ("--hostname", "tree"), ("-hostname=tree",), ("-hostname", "tree")], ids=" ".join
)
def test_flags_are_read_in_every_spelling_of_go(make_pod: MakePod, hostname: tuple[str, ...]) -> None:
    """One or two dashes, the value after "=" or as the next word; booleans in all of Go's words."""
    pod = make_pod({"a": shell("hostname")})
    result = pod.run(*EVERY_FLAG_OFF, *hostname)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith(": tree\n")


def test_the_last_of_several_uses_of_a_flag_wins(make_pod: MakePod) -> None:
    """A later value replaces an earlier one, and flags end at "--"."""
    pod = make_pod({"a": shell("hostname")})
    result = pod.run("--hostname=one", "--mutable", "--mutable=false", "--hostname=two", operands=["--", pod.uuid])
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith(": two\n")


@pytest.mark.parametrize("spelling", [str.upper, lambda uuid: uuid.replace("-", "")])
def test_the_uuid_may_be_in_any_case_and_without_dashes(make_pod: MakePod, spelling: Any) -> None:
    """The pod is known by the canonical form of its UUID whatever was given."""
    pod = make_pod({"a": shell("hostname")})
    result = pod.run(operands=[spelling(pod.uuid)])
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith(f": rkt-{pod.uuid}\n")


@pytest.mark.parametrize(
    "flags",
    [
        ("--no-such-flag",),
        ("--debug=maybe",),
        ("--mutable=yes",),
        ("---debug",),
        ("--dns-conf-mode=resolv=sometimes",),
        ("--dns-conf-mode=mail=host",),
        ("--net=a,a",),
        ("--net=host:IP=1",),
        ("--net=,",),
    ],
    ids=" ".join,
)
def test_a_bad_flag_is_answered_with_usage(make_pod: MakePod, flags: tuple[str, ...]) -> None:
    """Exit status 2 and the usage text, as Go's flag package has it, and nothing else happens."""
    pod = make_pod({"a": shell("true")})
    result = pod.run(*flags)
    assert (result.returncode, result.stdout) == (2, "")
    first, second, *rest = result.stderr.splitlines()
    assert first.startswith("stage1: ")
    assert second.startswith("Usage of run")
    assert any(line.strip().startswith("-hostname") for line in rest)
    assert_nothing_left(pod)


@pytest.mark.parametrize("operands", [[], ["one", "two"]], ids=["none", "two"])
def test_not_exactly_one_uuid_is_a_usage_error(make_pod: MakePod, operands: list[str]) -> None:
    """The UUID is the one argument."""
    pod = make_pod({"a": shell("true")})
    result = pod.run(operands=operands)
    assert result.returncode in (2, 254)
    assert "UUID" in result.stderr
    assert_nothing_left(pod)


@pytest.mark.parametrize("uuid", ["", "x", "12345678", "g" * 32, "../../../../etc"])
def test_a_malformed_uuid_is_refused(make_pod: MakePod, uuid: str) -> None:
    """rkt's message and number."""
    pod = make_pod({"a": shell("true")})
    assert_refused(pod, pod.run(operands=[uuid]), "UUID is missing or malformed")


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--private-users=65536:65536",), "--private-users"),
        (("--mds-token=0123456789abcdef0123456789abcdef",), "failed to setup network: --mds-token needs a network"),
        (("--ipc=shared",), "unknown value for --ipc parameter: shared"),
        (("--hostname=" + "x" * 65,), "hostname"),
        (("--hostname=a\n10.0.0.1 registry",), "hostname"),
        (("--net=my-net:IP=10.1.2.3",), "failed to setup network: networks not found: my-net"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
@pytest.mark.host_users("one of the flags is --private-users")
def test_what_cannot_be_is_refused(make_pod: MakePod, flags: tuple[str, ...], word: str) -> None:
    """An argument without the effect it asks for is an error, never ignored."""
    pod = make_pod({"a": shell("true")})
    net = None if any(flag.startswith("--net") for flag in flags) else "none"
    assert_refused(pod, pod.run(*flags, net=net), word)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"eventHandlers": [{"name": "pre-start", "exec": ["true"]}]}, "pre-start: expected an absolute path"),
        (
            {"ports": [{"name": "p", "protocol": "sctp", "port": 80, "socketActivated": True}]},
            "port p: unrecognized protocol: sctp",
        ),
        ({"user": "nobody"}, '"nobody" user not found'),
        ({"group": "/not/there"}, "lstat /not/there: no such file or directory"),
        ({"exec": []}, "has no executable"),
        ({"annotations": [{"name": "minit/colour", "value": "green"}]}, "minit/colour"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("app_in_image", [False, True])
def test_an_app_that_asks_for_more_is_refused(
    make_pod: MakePod, fields: dict[str, Any], word: str, app_in_image: bool
) -> None:
    """The line names the app and what it asked for, wherever the app section stands."""
    pod = make_pod({"web": {**shell("true"), **fields}}, app_in_image=app_in_image)
    assert_refused(pod, pod.run(), 'app "web"', word)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"isolators": [{"name": "os/linux/oom-score-adj", "value": 1}]},
            ["pod: isolators[0]: isolator os/linux/oom-score-adj is one of apps"],
        ),
        ({"ports": [{"name": "http", "hostPort": 80}]}, ["forwarding ports needs a network"]),
        ({"annotations": {"minit/unheard-of": "1"}}, ["minit/unheard-of"]),
        ({"annotations": {"minit/stop-grace": "soon"}}, ["minit/stop-grace", '"soon"']),
        ({"annotations": {"minit/pids-limit": "none"}}, ["minit/pids-limit", '"none"']),
    ],
    ids=["isolator", "port", "annotation", "grace", "pids"],
)
def test_a_pod_that_asks_for_more_is_refused(make_pod: MakePod, fields: dict[str, Any], words: list[str]) -> None:
    """The same for what stands in the pod manifest itself."""
    pod = make_pod({"a": shell("true")}, **fields)
    assert_refused(pod, pod.run(), *words)


def test_an_unknown_isolator_is_warned_about(make_pod: MakePod) -> None:
    """The appc specification lets an executor go on, if it says so."""
    pod = make_pod({"a": shell("exit 0", isolators=[{"name": "example.com/shiny", "value": 1}])})
    result = pod.run()
    assert result.returncode == 0
    place = "pod: apps[0].app.isolators[0]"
    assert f"stage1: warning: ignoring unknown isolator example.com/shiny ({place})\n" in result.stderr


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("resource/memory", {"limit": "64m"}, ".limit: expected a quantity from 4096"),
        ("os/linux/capabilities-retain-set", {"set": []}, ".set: expected at least one capability"),
        ("os/linux/capabilities-remove-set", {"set": ["CAP_FLY"]}, ".set[0]: expected the name of a capability"),
    ],
)
@pytest.mark.parametrize("app_in_image", [False, True])
def test_an_isolator_that_makes_no_sense(
    make_pod: MakePod, name: str, value: object, message: str, app_in_image: bool
) -> None:
    """The line names the file and the place in it."""
    pod = make_pod({"web": shell("true", isolators=[{"name": name, "value": value}])}, app_in_image=app_in_image)
    place = "stage1/rootfs/opt/stage2/web/manifest: app" if app_in_image else "pod: apps[0].app"
    assert_refused(pod, pod.run(), f"{place}.isolators[0].value{message}")


def _edit(pod: PodDirectory, change: dict[str, Any]) -> None:
    manifest = json.loads((pod.path / "pod").read_text())
    (pod.path / "pod").write_text(json.dumps({**manifest, **change}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"apps": "none"}, ["pod: apps: expected a list"]),
        ({"apps": []}, ["pod: apps: expected at least one app"]),
        ({"acKind": "ImageManifest"}, ["pod: acKind: expected", '"PodManifest"']),
        ({"acVersion": "new"}, ["pod: acVersion: expected"]),
        ({"apps": [{"name": "Not A Name", "image": {}}]}, ["pod: apps[0].name: expected an ACName", '"Not A Name"']),
        ({"apps": [{"name": "a"}, {"name": "a"}]}, ["pod: apps[1].name: expected a unique name", '"a"']),
        ({"apps": [{"name": "a", "app": shell("true", user=0)}]}, ["pod: apps[0].app.user: expected"]),
        (
            {"apps": [{"name": "a", "app": shell("true", environment=[{"name": "A=B", "value": ""}])}]},
            ["pod: apps[0].app.environment[0].name: expected the name of an environment variable"],
        ),
        ({"volumes": [{"name": "v", "kind": "tape"}]}, ["pod: volumes[0].kind: expected"]),
    ],
    ids=["apps", "no-apps", "kind", "version", "name", "twice", "type", "environment", "volume"],
)
def test_a_bad_pod_manifest_is_one_line(make_pod: MakePod, change: dict[str, Any], words: list[str]) -> None:
    """The line names the file, the place in it and what was expected there."""
    pod = make_pod({"a": shell("true")})
    _edit(pod, change)
    assert_refused(pod, pod.run(), *words)


@pytest.mark.parametrize("text", ["", "{", '{"apps": [], "apps": []}', "\xff", "[" * 100])
def test_a_pod_manifest_that_is_not_json_is_one_line(make_pod: MakePod, text: str) -> None:
    """The line names the file."""
    pod = make_pod({"a": shell("true")})
    (pod.path / "pod").write_bytes(text.encode("latin-1"))
    assert_refused(pod, pod.run(), "pod: ")


def test_a_bad_app_section_in_the_image_is_one_line(make_pod: MakePod) -> None:
    """The image manifest is read as strictly as the pod's."""
    pod = make_pod({"a": app_section("/bin/true", workingDirectory="relative")}, app_in_image=True)
    path = "stage1/rootfs/opt/stage2/a/manifest"
    assert_refused(pod, pod.run(), f"{path}: app.workingDirectory: expected an absolute path")


@pytest.mark.parametrize("name", ["pod", "stage1/rootfs/opt/stage2/a/manifest"])
def test_a_missing_manifest_is_one_line(make_pod: MakePod, name: str) -> None:
    """The line names the file and says that it is not there."""
    pod = make_pod({"a": shell("true")})
    (pod.path / name).unlink()
    assert_refused(pod, pod.run(), "failed to load pod", name, "no such file or directory")


def test_an_app_that_only_the_image_describes_is_run(make_pod: MakePod) -> None:
    """The image's app section counts as a whole if the pod manifest has none."""
    pod = make_pod({"a": shell("exit 9")}, app_in_image=True)
    assert pod.run().returncode == 9


def test_the_app_section_of_the_pod_replaces_that_of_the_image(make_pod: MakePod) -> None:
    """Nothing of the image's section is left when the pod has one."""
    pod = make_pod({"a": shell("exit 9", environment=[{"name": "A", "value": "1"}])}, app_in_image=True)
    manifest = json.loads((pod.path / "pod").read_text())
    manifest["apps"][0]["app"] = shell("exit ${A-8}")
    (pod.path / "pod").write_text(json.dumps(manifest))
    assert pod.run().returncode == 8


@pytest.mark.parametrize("value", [None, "", "seven", "999", "-1"])
def test_without_the_lock_nothing_is_run(make_pod: MakePod, value: str | None) -> None:
    """RKT_LOCK_FD has to name an open descriptor."""
    pod = make_pod({"a": shell("true")})
    result = pod.run(env={"RKT_LOCK_FD": value})
    assert_refused(pod, result, "failed to get rkt lock fd")


def test_a_refusal_counts_even_if_nobody_can_read_it(make_pod: MakePod) -> None:
    """The exit status is the same with standard error closed, and with a reader that went away."""
    pod = make_pod({"a": shell("true")})
    assert pod.run("--ipc=shared", preexec_fn=lambda: os.close(2), stderr=None).returncode == 254
    reader, writer = os.pipe()
    os.close(reader)
    pod = make_pod({"a": shell("true")})
    assert pod.run("--ipc=shared", stderr=writer).returncode == 254
    os.close(writer)


def test_a_pod_is_run_as_root_only(make_pod: MakePod) -> None:
    """Anybody else gets one line."""
    pod = make_pod({"a": shell("true")})
    for directory in (pod.path, *pod.path.parents):
        if directory.stat().st_mode & 0o001 == 0:
            directory.chmod(0o755)
    result = pod.run(user=65534)
    assert result.returncode == 254
    assert result.stderr.count("\n") == 1
    assert_nothing_left(pod)
