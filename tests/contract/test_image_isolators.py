"""Requests of an image, which a pod manifest repeats as its own: to have less, and under rkt a little more."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from typing import Any

import pytest

from minit.manifest.capabilities import DEFAULT, capability_mask
from tests.support.bpf import native
from tests.support.guest import GUEST
from tests.support.pods import MakePod, PodDirectory, guest, handlers

RETAIN, REMOVE = "os/linux/seccomp-retain-set", "os/linux/seccomp-remove-set"
CAPABILITIES = "os/linux/capabilities-retain-set"
TRUSTED = {"minit/trusted-isolators": "true"}

ALL_CALLS = {"name": RETAIN, "value": {"set": ["@appc.io/all"]}}
MOUNTS = {"name": RETAIN, "value": {"set": ["@rkt/default-whitelist", "@systemd/mount"]}}
ADMIN = {"name": CAPABILITIES, "value": {"set": ["CAP_SYS_ADMIN", "CAP_SYS_CHROOT"]}}

Isolators = Sequence[dict[str, Any]]


UNSHARE, MOUNT, BIND = native("unshare", 0), native("mount", 0, 1, 0, 0, 0), native("mount", 0, 1, 0, 0x1000, 0)
KEYCTL, SETHOSTNAME = native("keyctl", -1), native("sethostname", 0, 0)
CALLS = (UNSHARE, MOUNT, BIND, KEYCTL, SETHOSTNAME)
REFUSED, WRONG, UNSUPPORTED = (f"errno {number}" for number in (errno.EPERM, errno.EFAULT, errno.EOPNOTSUPP))
FATAL = "signal 31"


def pod_of(
    make_pod: MakePod,
    image: Isolators,
    pod: Isolators | None = None,
    annotations: dict[str, str] | None = None,
    **fields: Any,
) -> PodDirectory:
    """Return a pod with an app of an image with these isolators; `pod` are those of its manifest, if they differ."""
    section = guest("calls", "/tmp/report", *CALLS, isolators=list(image), **fields)
    made = make_pod({"a": section}, app_in_image=True)
    manifest = json.loads((made.path / "pod").read_text())
    [entry] = manifest["apps"]
    entry["app"] = {**section, "isolators": list(image if pod is None else pod)}
    entry["annotations"] = [{"name": name, "value": value} for name, value in (annotations or {}).items()]
    (made.path / "pod").write_text(json.dumps(manifest))
    return made


def results_of(pod: PodDirectory, *flags: str) -> list[str]:
    """Return what became of the calls."""
    result = pod.run(*flags)
    assert result.returncode == 0, result
    return [line.partition("]: ")[2] for line in result.stdout.splitlines()]


@pytest.mark.parametrize("isolators", [[ALL_CALLS], [{"name": REMOVE, "value": {"set": ["acct"]}}], [MOUNTS]])
def test_more_system_calls_open_nothing_of_the_host(make_pod: MakePod, isolators: Isolators) -> None:
    """An image may list more calls, but gets no mounts, namespaces or keys by them."""
    results = results_of(pod_of(make_pod, isolators))
    assert results[1:3] == [REFUSED, REFUSED]
    assert {results[0], results[3]} <= {REFUSED, FATAL}
    assert results[4] == (FATAL if isolators == [MOUNTS] else REFUSED)


def test_more_capabilities_come_with_the_default_filter(make_pod: MakePod) -> None:
    """An image may retain any capability; what the default list lacks stays fatal."""
    pod = pod_of(make_pod, [ADMIN])
    assert results_of(pod) == [FATAL] * 5
    assert int(pod.report("a").status["CapBnd"], 16) == capability_mask("CAP_SYS_ADMIN", "CAP_SYS_CHROOT")


@pytest.mark.parametrize("filter", [ALL_CALLS, MOUNTS])
def test_both_at_once_are_refused(make_pod: MakePod, filter: dict[str, Any]) -> None:
    """One line names what the image asks for, and how to have it; nothing is made."""
    pod = pod_of(make_pod, [ADMIN, filter])
    result = pod.run()
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (254, "", 1)
    wanted = "every system call" if filter == ALL_CALLS else "fsconfig, fsmount, fsopen and 8 more"
    assert 'app "a": its image asks for more than the default both in capabilities and in system calls' in result.stderr
    assert f"{CAPABILITIES} (CAP_SYS_ADMIN) and {RETAIN} ({wanted})" in result.stderr
    for word in ("--caps-retain", "--seccomp", "minit/trusted-isolators=true"):
        assert word in result.stderr
    assert not pod.control_groups()


@pytest.mark.parametrize("value", ["unconfined", "guarded", "by-capabilities", '{"defaultAction": "SCMP_ACT_ALLOW"}'])
def test_a_profile_is_the_callers(make_pod: MakePod, value: str) -> None:
    """No image has one; with capabilities of its image's an app gets no mounts, namespaces or keys by the caller's."""
    results = results_of(pod_of(make_pod, [ADMIN], annotations={"minit/seccomp": value}))
    assert results == ([FATAL] * 5 if value == "by-capabilities" else [*[REFUSED] * 4, "errno 0"])
    given = results_of(pod_of(make_pod, [], [ADMIN], annotations={"minit/seccomp": value}))
    mounts = {"unconfined": WRONG, "by-capabilities": FATAL}.get(value, REFUSED)
    assert given[:3] == ["errno 0", mounts, mounts]
    made = make_pod({"a": guest("true")}, image_annotations={"minit/seccomp": value})
    result = made.run()
    assert result.returncode == 254
    assert 'annotation "minit/seccomp" is one of apps, not of images' in result.stderr


def test_both_at_once_where_the_image_alone_has_the_app(make_pod: MakePod) -> None:
    """So it is if the pod manifest leaves the app to the image."""
    section = guest("calls", "/tmp/report", *CALLS, isolators=[ADMIN, ALL_CALLS])
    result = make_pod({"a": section}, app_in_image=True).run()
    assert result.returncode == 254
    assert "minit/trusted-isolators=true" in result.stderr


@pytest.mark.parametrize("flag", ["--disable-seccomp", "--disable-capabilities-restriction"])
def test_one_restriction_that_the_caller_disabled(make_pod: MakePod, flag: str) -> None:
    """Then the image asks for one more only, by which it gets no mounts either."""
    results = results_of(pod_of(make_pod, [ADMIN, ALL_CALLS]), flag)
    assert results[:4] == [REFUSED] * 4


@pytest.mark.parametrize(
    ("image", "pod"), [([ADMIN], [ADMIN, ALL_CALLS]), ([ALL_CALLS], [ADMIN, ALL_CALLS])], ids=["filter", "capabilities"]
)
def test_what_the_caller_adds_opens_no_mounts_to_the_image(make_pod: MakePod, image: Isolators, pod: Isolators) -> None:
    """If either the capabilities or the calls are the image's, mounts, namespaces and keys stay closed."""
    assert results_of(pod_of(make_pod, image, pod))[:4] == [REFUSED] * 4


@pytest.mark.parametrize("annotations", [{}, TRUSTED], ids=["own", "trusted"])
def test_the_caller_may_give_both(make_pod: MakePod, annotations: dict[str, str]) -> None:
    """By a pod manifest of his own, or by trusting the image; new mounts are still refused, others are not."""
    image = [ADMIN, ALL_CALLS] if annotations else []
    results = results_of(pod_of(make_pod, image, [ADMIN, ALL_CALLS], annotations))
    assert results == ["errno 0", REFUSED, WRONG, UNSUPPORTED, "errno 0"]


def test_an_image_may_narrow(make_pod: MakePod) -> None:
    """Fewer capabilities and fewer calls are nobody's concern but the image's."""
    isolators = [
        {"name": CAPABILITIES, "value": {"set": ["CAP_CHOWN"]}},
        {"name": RETAIN, "value": {"set": ["@rkt/default-whitelist"]}},
    ]
    pod = pod_of(make_pod, isolators)
    assert results_of(pod)[0] == FATAL
    assert int(pod.report("a").status["CapBnd"], 16) == capability_mask("CAP_CHOWN")


def test_a_list_of_an_image_makes_no_namespaces_by_clone(make_pod: MakePod) -> None:
    """rkt's own list allows clone as it is, but not to who gets it from an image."""
    isolators = [{"name": RETAIN, "value": {"set": ["@rkt/default-whitelist"]}}]
    clone = native("clone", 0x10000000)
    for image, wanted in ((isolators, REFUSED), ([], "errno 22")):
        made = pod_of(make_pod, image, isolators)
        manifest = json.loads((made.path / "pod").read_text())
        manifest["apps"][0]["app"]["exec"] = [GUEST, "calls", "/tmp/report", native("clone", 0x10000000 | 0x10000)]
        (made.path / "pod").write_text(json.dumps(manifest))
        assert results_of(made) == [wanted], clone


@pytest.mark.parametrize("value", ["", "yes", "1"])
@pytest.mark.parametrize("name", ["minit/trusted-isolators", "minit/vsock"])
def test_annotations_that_make_no_sense(make_pod: MakePod, name: str, value: str) -> None:
    """They are true or false."""
    result = pod_of(make_pod, [], None, {name: value}).run()
    assert (result.returncode, result.stderr) == (
        254,
        f'stage1: app "a": {name}: expected true or false, got "{value}"\n',
    )


def test_a_handler_has_no_more_than_its_app(make_pod: MakePod) -> None:
    """An image that keeps one capability for its app has no other for its handlers, which are root."""
    commands = handlers(pre_start=(GUEST, "report", "/tmp/before"), post_stop=(GUEST, "report", "/tmp/after"))
    isolators = [{"name": CAPABILITIES, "value": {"set": ["CAP_CHOWN", "CAP_KILL"]}}]
    pod = pod_of(make_pod, isolators, user="1000", eventHandlers=commands)
    assert pod.run().returncode == 0
    for name in ("before", "after"):
        status = pod.report("a", f"/tmp/{name}").status
        held = {int(status[field], 16) for field in ("CapBnd", "CapPrm", "CapEff")}
        assert held == {capability_mask("CAP_CHOWN", "CAP_KILL")} != {DEFAULT}
