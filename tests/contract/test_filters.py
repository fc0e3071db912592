"""`--filter` of the lists, and of the commands that stop and remove pods, with real pods and images."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.commands import Stage0
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

SLEEP = ("--exec=/bin/sh", "--", "-c", "exec busybox sleep 1000")
EXIT = ("--exec=/bin/sh", "--", "-c", "exit 3")


def start(minit: Stage0, name: str, *words: object) -> str:
    """Run a pod in the background and return its UUID."""
    result = minit.call("run", minit.stage1_flag, "--net=none", "--detach", f"--name={name}", *words)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_pods_that_fit(minit: Stage0) -> None:
    """list shows, stop stops and rm removes the pods that fit, and other pods are left alone."""
    image = minit.image()
    names = {
        start(minit, "old", image, "--label=tier=back", *EXIT): "old",
        start(minit, "web", "-v", "site:/www", image, "--label=tier=front", "--label=blue=1", *SLEEP): "web",
        start(minit, "db", image, "--label=tier=back", *SLEEP): "db",
    }
    assert minit.call("status", "--wait", "old").returncode == 0

    def listed(*texts: str) -> set[str]:
        result = minit.call("list", "--quiet", *(f"--filter={text}" for text in texts))
        assert result.returncode == 0, result.stderr
        return {names[uuid] for uuid in result.stdout.split()}

    assert listed() == {"old", "web", "db"}
    assert listed("status=running") == {"web", "db"}
    assert listed("status=exited", "status=running", "label=tier=back") == {"old", "db"}
    assert listed("exited=3") == {"old"}
    assert listed("label=tier", "label=blue") == {"web"}
    assert listed("label!=tier=back") == {"web"}
    assert listed("volume=site") == listed("volume=/www") == listed("name=^w") == {"web"}
    assert listed("before=web") == {"old"}
    assert listed("since=web") == {"db"}
    assert listed("ancestor=busybox", "app=busybox", "ctr-number=1", "until=now") == {"old", "web", "db"}
    assert listed("ancestor=nginx") == listed("network=shop") == set()
    assert minit.call("list", "-f", "id=" + [*names][1][:8], "-q").stdout.split() == [[*names][1]]

    refused = minit.call("stop", "--filter=name=web", "db")
    assert (refused.returncode, refused.stderr) == (
        254,
        "stop: --filter is for all pods: it has no operands beside it (see minit stop --help)\n",
    )
    assert minit.call("stop", "--all", "--filter=label=tier=back").stdout.split('"')[1::2] == [[*names][2]]
    assert listed("status=running") == {"web"}
    assert minit.call("rm", "--filter=status=exited", "--filter=exited=3").returncode == 0
    assert listed() == {"web", "db"}
    missing = minit.call("list", "--filter=before=old")
    assert (missing.returncode, missing.stderr) == (254, 'list: --filter before=old: there is no "old"\n')
    assert minit.call("stop", "--all").returncode == 0


def test_pods_that_are_healthy(minit: Stage0) -> None:
    """A pod fits by the results of its checks, and one without results does not."""
    image = minit.image()
    checked = ("--health-interval=100ms", "--health-retries=1")
    good = start(minit, "good", image, "--health-cmd=true", *checked, *SLEEP)
    bad = start(minit, "bad", image, "--health-cmd=false", *checked, *SLEEP)
    start(minit, "none", image, *SLEEP)

    def listed(word: str) -> list[str]:
        return minit.call("list", "--quiet", f"--filter=health={word}").stdout.split()

    wait_for(lambda: (listed("healthy"), listed("unhealthy")) == ([good], [bad]), "results of the checks")
    assert minit.call("stop", "--all", "--force").returncode == 0


def test_images_that_fit(minit: Stage0) -> None:
    """image list shows the images whose names fit, and an image has no name when a later one has taken it."""
    image = minit.image()
    [first] = minit.call("fetch", image, "--full").stdout.split()

    def listed(*texts: str) -> list[str]:
        words = (f"--filter={text}" for text in texts)
        return minit.call("image", "list", "--full", "--no-legend", "--fields=id", *words).stdout.split()

    assert listed("reference=busybox") == listed("dangling=false") == listed(f"id={first[:20]}") == [first]
    assert listed("dangling=true") == listed("reference!=busybox") == listed("since=busybox") == []
    [second] = minit.call("fetch", minit.image(userLabels={"tier": "back"}), "--full").stdout.split()
    assert (listed("dangling=true"), listed("dangling=false"), listed("label=tier=back")) == (
        [first],
        [second],
        [second],
    )
    assert (listed(f"before={second}"), listed(f"since={first}"), listed("label!=tier")) == ([first], [second], [first])


@pytest.mark.host_root("links of the machine are root's")
def test_volumes_and_networks_that_fit(minit: Stage0, tmp_path: Path) -> None:
    """volume ls and network ls show what fits, and a word that is no filter is refused with the filters."""
    for name in ("site", "data"):
        assert minit.call("volume", "create", name).returncode == 0

    def volumes(*texts: str) -> list[str]:
        listed = minit.call("volume", "ls", "--format=json", *(word for text in texts for word in ("-f", text)))
        return [volume["name"] for volume in json.loads(listed.stdout)]

    assert (volumes("name=^s", "dangling=true"), volumes("dangling=false")) == (["site"], [])
    assert (volumes("since=site"), volumes("until=now", "name=data", "name=site")) == (["data"], ["data", "site"])
    config = f"--local-config={tmp_path}/config"
    for name, driver in (("shop", "bridge"), ("office", "macvlan")):
        words = ("--opt=parent=lo", "--subnet=192.0.2.0/24") if driver == "macvlan" else ()
        made = minit.call("network", "create", config, f"--driver={driver}", f"--label=of={name}", *words, name)
        assert made.returncode == 0, made.stderr
    for texts in (["driver=bridge"], ["label=of=shop"], ["name=sh", "dangling=1", "until=now"]):
        shown = minit.call("network", "ls", config, "-q", *(f"--filter={text}" for text in texts))
        assert shown.stdout == "shop\n"
    refused = minit.call("network", "ls", "--filter=drive=bridge")
    assert refused.returncode == 254
    assert 'networks have no filter "drive", did you mean driver? Filters are name, label' in refused.stderr


def test_unneeded_things_that_fit(minit: Stage0, tmp_path: Path) -> None:
    """Pods, images, volumes and networks that do not fit are left, an ended pod with its image."""
    images = {}
    for tier in ("front", "back", "spare"):
        words = ("fetch", minit.image(userLabels={"tier": tier}), "--full")
        [images[tier]] = minit.call(*words).stdout.split()
    ended = {tier: start(minit, tier, images[tier], *EXIT) for tier in ("front", "back")}
    for uuid in ended.values():
        assert minit.call("status", "--wait", uuid).returncode == 0

    def pruned(*words: str) -> list[tuple[str, ...]]:
        shown = minit.call("system", "prune", "--dry-run", *words).stdout.splitlines()
        return [tuple(line.split("\t")[:2]) for line in shown if line.startswith(("pod", "image"))]

    def left(kind: str) -> set[str]:
        listed = minit.call(*kind.split(), "list", "--format=json")
        return {each.get("id") or each["name"] for each in json.loads(listed.stdout) or ()}

    everything = {*images.values()}
    assert pruned("--filter=until=1h") == pruned("--all", "--filter=until=1h") == []
    # Two later images have taken the name.
    expected = [("pod", ended["back"]), ("image", images["back"])]
    assert pruned("--filter=label=tier=back") == pruned("--all", "--filter=label=tier=back") == expected
    assert (pruned("--filter=label=tier=spare"), pruned("--all", "--filter=label=tier=spare")) == (
        [],
        [("image", images["spare"])],
    )
    assert minit.call("system", "prune", "--force", "--all", "--filter=label=tier=back").returncode == 0
    assert (left(""), left("image") & everything) == ({ended["front"]}, {images["front"], images["spare"]})
    assert minit.call("start", "front").returncode == 0
    assert minit.call("status", "--wait", "front").returncode == 0
    assert minit.call("image", "gc", "--grace-period=0s", "--filter=label=none").returncode == 0
    assert left("image") & everything == {images["front"], images["spare"]}
    assert minit.call("image", "gc", "--grace-period=0s", "--filter=label=tier=spare").returncode == 0
    assert left("image") & everything == {images["front"]}

    assert minit.call("volume", "create", "site", "data").returncode == 0
    assert minit.call("volume", "prune", "--force", "--filter=name=^s").stdout == "site\n"
    assert minit.call("volume", "prune", "--force", "--filter=until=1h").stdout == ""
    config = f"--local-config={tmp_path}/config"
    for name in ("shop", "office"):
        made = minit.call("network", "create", config, f"--label=of={name}", name)
        assert made.returncode == 0, made.stderr
    assert minit.call("network", "prune", config, "--force", "--filter=label=of=shop").stdout == "shop\n"
    assert minit.call("network", "prune", config, "--force", "--filter=until=1h").stdout == ""
