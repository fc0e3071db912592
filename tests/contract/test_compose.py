"""`minit compose`: projects of busyboxes go up, change and go down, and leave nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Stage0
from tests.support.hostnet import leftovers
from tests.support.usersession import without_warning
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")


class Compose:
    """The command on a file of its own, in the project `shop`."""

    def __init__(self, minit: Stage0, root: Path) -> None:
        self.minit = minit
        self.root = root / "project"
        self.root.mkdir()
        self.image = minit.image()

    def write(self, text: str) -> None:
        """Write the file, with the image in the place of IMAGE."""
        (self.root / "compose.yaml").write_text(text.replace("IMAGE", str(self.image)))

    def words(self, verb: str, *words: object) -> tuple[object, ...]:
        """Return the words of a call."""
        stage1 = (self.minit.stage1_flag,) if verb == "up" else ()
        return ("compose", f"--file={self.root}/compose.yaml", "--project-name=shop", verb, *stage1, *words)

    def __call__(self, verb: str, *words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        result = self.minit.call(*self.words(verb, *words))
        assert result.returncode == code, result.stderr
        return result

    def up(self, *words: object, code: int = 0) -> list[str]:
        """Return what `up -d` tells of the pods, volumes and networks."""
        told = self("up", "--detach", "--quiet-pull", *words, code=code).stderr
        return [line.removeprefix("up: ") for line in without_warning(told, -1).splitlines()]

    def ps(self) -> dict[str, dict[str, Any]]:
        """Return the pods that run, by their names."""
        found = map(json.loads, self("ps", "--format=json").stdout.splitlines())
        return {pod["Name"]: pod for pod in found}

    def exec(self, service: str, script: str, code: int = 0) -> str:
        """Return what a script says in a service."""
        return self("exec", service, "/bin/sh", "-c", script, code=code).stdout


@pytest.fixture
def compose(minit: Stage0, tmp_path: Path) -> Iterator[Compose]:
    """No pods, networks or volumes before and after."""
    compose = Compose(minit, tmp_path)
    try:
        yield compose
        assert minit.call("list", "--no-legend").stdout == ""
        assert minit.call("volume", "ls").stdout.count("\n") <= 1
        assert leftovers() == []
    finally:
        minit.call(*compose.words("down", "--timeout=0", "--volumes"))


SHOP = """
x-idle: &idle
  image: IMAGE
  entrypoint: [/bin/sh, -c, "echo here; exec busybox sleep 1000"]
  stop_grace_period: 1s
services:
  web:
    <<: *idle
    environment: {COLOUR: red}
    depends_on:
      data_base: {condition: service_healthy}
      job: {condition: service_completed_successfully}
    secrets: [{source: key, mode: 0400}]
    configs: [{source: text, target: /etc/text}]
    tmpfs: /scratch:size=1m
    hostname: front
  data_base:
    <<: *idle
    entrypoint: [/bin/sh, -c, "busybox sleep 0.3; : > /data/ok; exec busybox sleep 1000"]
    healthcheck: {test: [CMD, /bin/busybox, test, -e, /data/ok], start_interval: 100ms}
    volumes: ["data:/data", "./bind:/bind:ro"]
    networks: {default: {aliases: [db]}}
  job:
    image: IMAGE
    entrypoint: [/bin/sh, -c, "exit 0"]
volumes: {data: }
secrets: {key: {file: key.txt}}
configs: {text: {content: "said $$"}}
"""


def test_a_project(compose: Compose) -> None:
    """
    Services start in order and when their conditions hold, find each other by name, and have what the file says; a
    second up changes nothing, a changed file what has changed; down leaves nothing but the volume.
    """
    compose.write(SHOP)
    (compose.root / "key.txt").write_text("top")
    told = compose.up()
    assert told == [
        "Network shop_default  Created",
        "Volume shop_data  Created",
        "Pod shop-data_base-1  Started",
        "Pod shop-job-1  Started",
        "Pod shop-web-1  Started",
    ]
    pods = compose.ps()
    assert {name: (pod["Service"], pod["State"], pod["Health"]) for name, pod in pods.items()} == {
        "shop-data_base-1": ("data_base", "running", "healthy"),
        "shop-web-1": ("web", "running", ""),
    }
    seen = compose.exec(
        "web",
        "busybox cat /run/secrets/key /etc/text; echo; busybox stat -c %a /run/secrets/key; busybox hostname;"
        " echo $COLOUR; for each in data_base db; do busybox ping -c1 -w9 $each > /dev/null && echo $each; done;"
        " busybox grep scratch /proc/mounts | busybox cut -d' ' -f2-3;"
        " busybox cat /proc/sys/net/ipv4/ip_unprivileged_port_start",
    )
    assert seen.splitlines() == ["topsaid $", "400", "front", "red", "data_base", "db", "/scratch tmpfs", "0"]
    compose.exec("data_base", "echo kept > /data/file; busybox touch /bind/x || exit 9", code=9)
    assert compose("logs", "--tail=1", "web").stdout == "web-1  | here\n"

    assert compose.up() == [
        "Pod shop-data_base-1  Running",
        "Pod shop-job-1  Started",
        "Pod shop-web-1  Running",
    ]
    compose.write(SHOP.replace("red", "blue"))
    assert compose.up("--no-deps", "web") == ["Pod shop-web-1  Recreated"]
    assert compose.exec("web", "echo $COLOUR") == "blue\n"
    assert compose.up("--no-deps", "--scale=web=2", "web") == ["Pod shop-web-1  Running", "Pod shop-web-2  Started"]
    addresses = compose.exec("data_base", "busybox grep -w web /etc/hosts")
    assert addresses.count("\n") == 2
    ids = {name: pod["ID"] for name, pod in compose.ps().items()}
    compose("restart", "--timeout=1", "web")
    assert {name: pod["ID"] for name, pod in compose.ps().items()} == ids

    by_name = compose.minit.call("compose", "--project-name=shop", "ps", "--services")
    assert by_name.stdout.split() == ["data_base", "web"]

    assert [line.removeprefix("down: ") for line in compose("down", "--timeout=0").stderr.splitlines()] == [
        "Pod shop-web-2  Removed",
        "Pod shop-web-1  Removed",
        "Pod shop-job-1  Removed",
        "Pod shop-data_base-1  Removed",
        "Network shop_default  Removed",
    ]
    compose.write(SHOP.replace(" : > /data/ok;", ""))
    compose.up("data_base")
    assert compose.exec("data_base", "busybox cat /data/file") == "kept\n"
    assert compose("down", "--volumes").stderr.endswith("Volume shop_data  Removed\n")


FAILING = """
services:
  web: {image: IMAGE, entrypoint: [busybox, sleep, "9"], depends_on: {job: {condition: CONDITION}}, volumes: ["v:/v"]}
  job: {image: IMAGE, entrypoint: [/bin/sh, -c, "exit 3"]}
  base: {image: IMAGE, entrypoint: [/bin/busybox, sleep, "1000"], stop_grace_period: 0s}
volumes: {v: }
"""


@pytest.mark.parametrize(
    ("condition", "reason"),
    [("service_completed_successfully", "has ended with 3"), ("service_healthy", "has no healthcheck")],
)
def test_a_failed_up_is_taken_back(compose: Compose, condition: str, reason: str) -> None:
    """A condition that cannot hold any more is an error, and nothing of this up stays; what was there before does."""
    compose.write(FAILING.replace("CONDITION", condition))
    compose.up("base")
    assert compose.up(code=254)[-1] == f"service web: waits for job: pod shop-job-1 {reason}"
    assert [*compose.ps()] == ["shop-base-1"]
    assert compose.minit.call("list", "--no-legend").stdout.count("\n") == 1
    compose("down")


def test_in_the_foreground(compose: Compose) -> None:
    """The output of all services is shown with their names, and an interrupt stops them in the reverse order."""
    script = "trap 'echo bye; exit 0' TERM; echo hello; while :; do busybox sleep 0.1; done"
    compose.write(
        "services:\n"
        f'  a: {{image: IMAGE, entrypoint: [/bin/sh, -c, "{script}"]}}\n'
        f'  b: {{image: IMAGE, container_name: shop-x, entrypoint: [/bin/sh, -c, "{script}"], depends_on: [a]}}\n'
    )
    words = compose.words("up", "--quiet-pull")
    with compose.minit.start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert {process.stdout.readline(), process.stdout.readline()} == {b"a-1     | hello\n", b"shop-x  | hello\n"}
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=100)
    assert process.returncode == 130
    assert {b"a-1     | bye", b"shop-x  | bye"} <= {*output.splitlines()}
    assert errors.splitlines()[-2:] == [b"up: Pod shop-x  Stopped", b"up: Pod shop-a-1  Stopped"]
    assert compose.ps() == {}
    compose("start")
    wait_for(lambda: len(compose.ps()) == 2, "both pods")
    compose("down", "--timeout=0")


TASKS = """
services:
  task:
    image: IMAGE
    entrypoint: [/bin/sh, -c]
    command: ["exit 9"]
    environment: {COLOUR: red}
    ports: ["18099:80"]
    restart: always
    depends_on: [data_base]
  data_base:
    image: IMAGE
    entrypoint: [/bin/sh, -c, "exec busybox sleep 1000"]
    stop_grace_period: 1s
"""


def test_a_command_of_a_service(compose: Compose) -> None:
    """A pod of its own runs the command once, after the services in need, and is none of the pods of the service."""
    compose.write(TASKS)
    words = ("--rm", compose.minit.stage1_flag, "--env=SIZE=big", "--user=7:8", "--workdir=/bin", "task")
    ran = compose("run", *words, "echo $COLOUR $SIZE $PWD; busybox id -u; busybox id -g; exit 3", code=3)
    said = [line.partition("]: ")[2] for line in ran.stdout.splitlines()]
    assert said == ["red big /bin", "7", "8"]
    assert [*compose.ps()] == ["shop-data_base-1"]
    uuid = compose(
        "run", "--detach", "--name=once", compose.minit.stage1_flag, "--no-deps", "task", "busybox sleep 1000"
    )
    assert compose.minit.call("list", "--no-legend").stdout.count("\trunning\t") == 2
    assert [*compose.ps()] == ["shop-data_base-1"]
    assert compose.minit.call("status", "once").stdout and uuid.stdout.strip()
    compose("down")


def test_a_failed_command_of_a_service_leaves_the_services_in_need(compose: Compose) -> None:
    """If the pod of a command cannot be made, the services that were made for the pod run on, with their network."""
    compose.write(TASKS)
    failed = compose("run", "--name=shop-data_base-1", compose.minit.stage1_flag, "task", "exit 0", code=254)
    assert 'service task: the name "shop-data_base-1" is that of pod' in failed.stderr
    assert [*compose.ps()] == ["shop-data_base-1"]
    assert compose.minit.call("list", "--no-legend").stdout.count("\n") == 1
    assert compose("down", "--timeout=0").stderr.endswith("Network shop_default  Removed\n")


def test_the_first_end_stops_all(compose: Compose) -> None:
    """The exit code is that of the first pod, or with --exit-code-from that of a service."""
    compose.write(
        """
services:
  tests: {image: IMAGE, entrypoint: [/bin/sh, -c, "busybox sleep 0.3; exit 4"]}
  web:
    image: IMAGE
    entrypoint: [/bin/sh, -c, "trap 'exit 5' TERM; busybox sleep 1000 & wait"]
"""
    )
    compose("up", "--quiet-pull", "--abort-on-container-exit", code=4)
    assert compose.ps() == {}
    compose("up", "--quiet-pull", "--exit-code-from=web", code=5)
    refused = compose("up", "--exit-code-from=nobody", code=254)
    assert "there is no service nobody" in refused.stderr
    compose("down")
