"""Texts of an image and of its files reach nobody's terminal as they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.elf import elf_bytes
from tests.support.hostiletext import EVIL, is_harmless
from tests.support.pods import MakePod, PodDirectory, app_section, handlers, shell
from tests.support.waiting import wait_for

# How lines of ours begin, and those that an app, or its handler, has written.
BEGINNINGS = re.compile(r"(stage1|networking|enter|Error|\S+\[\d+\]): ")


def isolator(name: str, value: object) -> list[dict[str, Any]]:
    """Return the isolators of an app section with one."""
    return [{"name": name, "value": value}]


FIELDS: dict[str, dict[str, Any]] = {
    "workingDirectory": shell("true", workingDirectory=f"/{EVIL}"),
    "exec": app_section(f"/{EVIL}"),
    "exec below a file": app_section(f"/etc/passwd/{EVIL}"),
    "exec by PATH": app_section(EVIL, environment=[{"name": "PATH", "value": f"/{EVIL}"}]),
    "user": shell("true", user=EVIL),
    "user of a file": shell("true", user=f"/{EVIL}"),
    "group": shell("true", group=EVIL),
    "group of a file": shell("true", group=f"/{EVIL}"),
    "name of a mount point": shell("true", mountPoints=[{"name": EVIL, "path": "/x"}]),
    "mount point": shell("true", mountPoints=[{"name": "x", "path": f"/etc/passwd/{EVIL}"}]),
    "mount point that is relative": shell("true", mountPoints=[{"name": "x", "path": f"{EVIL}/../.."}]),
    "variable": shell("true", environment=[{"name": EVIL, "value": EVIL}]),
    "pre-start": shell("true", eventHandlers=handlers(pre_start=[f"/{EVIL}"])),
    "post-stop": shell("true", eventHandlers=handlers(post_stop=[f"/{EVIL}"])),
    "name of a handler": shell("true", eventHandlers=[{"name": EVIL, "exec": ["/bin/true"]}]),
    "directory of a handler": shell(
        "true", workingDirectory=f"/{EVIL}", eventHandlers=handlers(pre_start=["/bin/true"])
    ),
    "port": shell("true", ports=[{"name": EVIL, "protocol": EVIL, "port": 1}]),
    "isolator": shell("true", isolators=isolator(EVIL, EVIL)),
    "value of an isolator": shell("true", isolators=isolator("resource/memory", {"limit": EVIL})),
    "capability": shell("true", isolators=isolator("os/linux/capabilities-retain-set", {"set": [EVIL]})),
    "system call": shell("true", isolators=isolator("os/linux/seccomp-remove-set", {"set": [EVIL]})),
    "errno": shell("true", isolators=isolator("os/linux/seccomp-remove-set", {"set": ["sync"], "errno": EVIL})),
}
ANNOTATIONS = {
    "annotation": {f"minit/{EVIL}": "x"},
    "stop signal": {"minit/stop-signal": EVIL},
    "experiment": {"coreos.com/rkt/experiment/logmode": EVIL},
    "ports of a docker image": {"appc.io/docker/entrypoint": EVIL, "coreos.com/rkt/stage1/x": EVIL},
}
FILES = {
    "script": f"#!/{EVIL}\n".encode(),
    "script of a link": b"#!/no/\x9b\x1b[2J\xe2\x80\xae\n",
    "loader": elf_bytes(interpreter=f"/{EVIL}"),
}


def assert_harmless(text: str) -> None:
    """Assert that nothing in the output of a pod acts on a terminal, and that each line is one of ours or of an app."""
    for line in text.removesuffix("\n").split("\n"):
        assert is_harmless(line) and "\ufffd" not in line, repr(line)
        assert not line or (BEGINNINGS.match(line) and not line.startswith("stage1: forged")), repr(line)


def assert_records_are_harmless(pod: PodDirectory) -> None:
    """Assert that nothing that minit has written down about a pod acts on a terminal either."""
    for top in {pod.status_root, pod.stage1}:
        for path in (top / "rkt/minit").rglob("*"):
            if path.is_file() and path.parent.name != "log":
                assert all(map(is_harmless, path.read_text().split("\n"))), path


@pytest.mark.parametrize("in_image", [True, False], ids=["image", "pod"])
@pytest.mark.parametrize("field", FIELDS)
def test_fields(make_pod: MakePod, field: str, in_image: bool) -> None:
    """Every field of an app is harmless in what the pod says, with --debug too."""
    pod = make_pod({"a": FIELDS[field]}, app_in_image=in_image)
    result = pod.run("--debug")
    assert_harmless(result.stderr)
    assert_harmless(result.stdout)
    assert_records_are_harmless(pod)


@pytest.mark.parametrize("case", ANNOTATIONS)
def test_annotations(make_pod: MakePod, case: str) -> None:
    """So are the annotations of the image."""
    result = make_pod({"a": shell("true")}, image_annotations=ANNOTATIONS[case]).run("--debug")
    assert_harmless(result.stderr)


@pytest.mark.parametrize("case", FILES)
def test_interpreters(make_pod: MakePod, own_rootfs: Path, case: str) -> None:
    """So is the interpreter that a program of the image names, for an app, its handler and a command that enters."""
    (own_rootfs / "tool").write_bytes(FILES[case])
    (own_rootfs / "tool").chmod(0o755)
    result = make_pod({"a": app_section("/tool", eventHandlers=handlers(post_stop=["/tool"]))}, own_rootfs).run()
    assert 'Unable to open "/' in result.stderr
    assert_harmless(result.stderr)
    pod = make_pod({"a": shell("touch /ready; exec sleep 1000")}, own_rootfs)
    pod.start()
    wait_for(pod.is_running, "pod")
    wait_for(lambda: pod.enter("a", "/bin/ls", "/ready").returncode == 0, "app")
    entered = pod.enter("a", "/tool")
    assert entered.returncode in (126, 127)
    assert_harmless(entered.stderr)
    for command in (f"/{EVIL}", EVIL):
        assert_harmless(pod.enter("a", command).stderr)
    assert pod.stop("--force").returncode == 0
