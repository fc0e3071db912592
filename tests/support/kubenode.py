"""
A node of Kubernetes: `minit cri` and a kubelet on a machine of their own, as far as programs can tell.

They are in a mount namespace and a network namespace that end with them, and in a control group of the session's. The
kernel's settings that a kubelet changes are files there, so that those of the machine stay as they are.
"""

from __future__ import annotations

import http.client
import json
import os
import shlex
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

import yaml

from minit.launcher.cgroups import read_hierarchies
from tests.support.commands import Stage0
from tests.support.owngroup import make_groups_below_own, remove_groups
from tests.support.stage0_world import REPOSITORY
from tests.support.waiting import wait_for

PROGRAMS = REPOSITORY / "build/kubernetes/bin"
BRIDGE = "kube0"
HOST_ADDRESS = "10.250.0.1"
KUBELET_PORT = 10250
LOG_FILES = 3
PAUSE_SECONDS = 0.2
"""Between questions to a kubelet, which looks at its pods each second."""

# What a kubelet wants the kernel's settings to be, and where it looks for them, as `setupKernelTunables` has it.
_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}
# What is in these directories is the node's own; those of the machine are read beside it.
_OWN = ("/var/lib", "/var/log")
_EMPTY = ("/run/netns", "/run/minit")


class Group:
    """A control group in every hierarchy, with processes in namespaces of their own."""

    def __init__(self, name: str) -> None:
        self.path = os.path.join("/", read_hierarchies()[0].own_path, name)
        self.directories = make_groups_below_own(name)
        self._started: list[subprocess.Popen[bytes]] = []

    def words(self) -> list[str]:
        """Return the words before those of a program that is to be in it."""
        enter = "; ".join(f"echo $$ > {shlex.quote(str(path / 'cgroup.procs'))}" for path in self.directories)
        return ["sh", "-ec", f'{enter}; exec "$@"', "sh"]

    def start(self, words: Sequence[object], log: Path) -> subprocess.Popen[bytes]:
        """Start a program in it, whose output is appended to a file."""
        command = [*self.words(), *map(str, words)]
        with open(log, "ab") as output:
            return self.keep(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
            )

    def keep(self, process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        """Wait for a process at the end, and return it."""
        self._started.append(process)
        return process

    def remove(self) -> None:
        """Kill all that is in it, and remove it."""
        try:
            remove_groups(self.directories)
        finally:
            for process in self._started:
                process.wait()


class KubeNode:
    """
    A node; `kubeconfig` names the API server's, without which it has static pods alone.

    `settings` are the kubelet's own, beside those that all nodes have.
    """

    def __init__(
        self,
        number: int,
        directory: Path,
        stage1: Path,
        kubeconfig: Path | None = None,
        settings: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self.name = f"node-{number}"
        self.address = f"10.250.0.{10 + number}"
        self.directory = directory
        self.socket = directory / "cri.sock"
        self.manifests = directory / "manifests"
        self.logs = directory / "log"
        self._kubeconfig = kubeconfig
        self._settings = settings
        for path in (self.manifests, self.logs, directory / "settings"):
            path.mkdir(parents=True)
        self.minit = Stage0([sys.executable, "-m", "minit"], directory, stage1)
        assert self.minit.call("fetch", self.minit.image()).returncode == 0
        self.group = Group(self.name)
        self._holder = self.group.start(
            ["unshare", "--mount", "--net", "--uts", "sh", "-ec", self._set_up_script()], self.logs / "holder"
        )
        self._join(number)
        self.daemon: subprocess.Popen[bytes] | None = None
        self.kubelet: subprocess.Popen[bytes] | None = None

    def _set_up_script(self) -> str:
        lines = [f"hostname {self.name}", "ip link set lo up"]
        for top in _OWN:
            upper, work = (self.directory / f"{part}{top.replace('/', '-')}" for part in ("upper", "work"))
            lines += [
                f"mkdir {upper} {work}",
                f"mount -t overlay -o lowerdir={top},upperdir={upper},workdir={work} overlay {top}",
            ]
        lines += [f"mount -t tmpfs tmpfs {path}" for path in _EMPTY]
        lines += ["mkdir -p /var/lib/cni"]
        for name, value in _SETTINGS.items():
            path = self.directory / "settings" / name.replace("/", ".")
            path.write_text(f"{value}\n")
            lines.append(f"mount --bind {path} /proc/sys/{name}")
        return "; ".join([*lines, f"touch {self.directory / 'holds'}", "exec sleep infinity"])

    def _join(self, number: int) -> None:
        """Put the node on the hosts' bridge."""
        wait_for((self.directory / "holds").exists, "the namespaces of a node")
        link = f"kube-{number}"
        _run(
            "ip", "link", "add", link, "master", BRIDGE, "up", "type", "veth", "peer", "eth0", "netns", self._holder.pid
        )
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")
        self.run("ip", "route", "add", "default", "via", HOST_ADDRESS)
        # Clouds tell their machines there what they are; the kubelet asks, and nobody is to answer late.
        self.run("ip", "route", "add", "unreachable", "169.254.0.0/16")

    def words(self, *words: object) -> list[str]:
        """Return the words that run a program on the node."""
        # A kubelet removes the logs of a container by a pattern, which is one of its directory if no log is told.
        namespaces = ("--mount", "--net", "--uts", f"--wdns={self.directory}")
        return ["nsenter", f"--target={self._holder.pid}", *namespaces, "--", *map(str, words)]

    def run(self, *words: object) -> str:
        """Run a program on the node, outside of its control group, and return its output."""
        return _run(*self.words(*words))

    def start_daemon(self) -> None:
        """Start `minit cri`, and return when it listens."""
        log = self.logs / "daemon"
        listen = f"--listen=unix://{self.socket}"
        words = ("cri", "--insecure-options=none", listen, "--net=default", self.minit.stage1_flag)
        with open(log, "ab") as output:
            before = os.fstat(output.fileno()).st_size
            under = [*self.group.words(), *self.words()]
            self.daemon = self.minit.start(
                *words, under=under, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        self.group.keep(self.daemon)
        wait_for(lambda: b"cri: serving" in log.read_bytes()[before:], "the daemon")

    def start_kubelet(self) -> None:
        """Start the kubelet, and return when it answers."""
        config = self.directory / "kubelet.json"
        config.write_text(json.dumps(self._kubelet_configuration()))
        words = [
            PROGRAMS / "kubelet",
            f"--config={config}",
            f"--root-dir={self.directory / 'kubelet'}",
            f"--cert-dir={self.directory / 'certificates'}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{self.socket}",
            "--v=2",
        ]
        if self._kubeconfig is not None:
            words.append(f"--kubeconfig={self._kubeconfig}")
        self.kubelet = self.group.start(self.words(*words), self.logs / "kubelet")
        wait_for(self._answers, "the kubelet", pause_seconds=PAUSE_SECONDS)

    def _kubelet_configuration(self) -> dict[str, object]:
        return {
            **_documented_configuration(),
            "staticPodPath": str(self.manifests),
            "fileCheckFrequency": "1s",
            "cgroupRoot": self.group.path,
            "makeIPTablesUtilChains": False,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "address": self.address,
            "port": KUBELET_PORT,
            "healthzPort": 0,
            "readOnlyPort": 0,
            "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%"},
            "featureGates": {"EphemeralContainers": True},
            "containerLogMaxSize": "16Ki",
            "containerLogMaxFiles": LOG_FILES,
            "syncFrequency": "2s",
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 8,
            "resolvConf": "",
            "volumePluginDir": str(self.directory / "plugins"),
            **self._settings,
        }

    def _answers(self) -> bool:
        assert self.kubelet is not None
        assert self.kubelet.poll() is None, "\n".join((self.logs / "kubelet").read_text().splitlines()[-20:])
        with suppress(OSError, http.client.HTTPException):
            return self.ask("/healthz")[0] == 200
        return False

    def log_of(self, pod: str, container: str = "main", *, previous: bool = False) -> str:
        """Return the log of a container in the namespace `default`."""
        status, body = self.ask(f"/containerLogs/default/{pod}/{container}?previous={str(previous).lower()}")
        assert status == 200, body
        return body

    def execute(self, pod: str, *command: str, container: str = "main") -> str:
        """Run a command in a container as an exec probe does, and return its output."""
        query = urlencode({"cmd": " ".join(command)})
        status, body = self.ask(f"/run/default/{pod}/{container}?{query}", "POST")
        assert status == 200, body
        return body

    def ask(self, path: str, method: str = "GET", timeout_seconds: float = 60) -> tuple[int, str]:
        """Make a request to the kubelet's own interface and return the status and the body."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the kubelet has made its certificate
        connection = http.client.HTTPSConnection(self.address, KUBELET_PORT, timeout=timeout_seconds, context=context)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def place(self, pod: dict[str, Any]) -> str:
        """Have a static pod run, and return the name that the kubelet gives it."""
        name = pod["metadata"]["name"]
        whole = self.directory / f"{name}.json"
        whole.write_text(json.dumps(pod))
        whole.rename(self.manifests / f"{name}.json")
        return f"{name}-{self.name}"

    def withdraw(self, pod: dict[str, Any]) -> None:
        """End a static pod, and return when the kubelet and the daemon have forgotten it."""
        name = pod["metadata"]["name"]
        (self.manifests / f"{name}.json").unlink()
        wait_for(lambda: f"{name}-{self.name}" not in self.pods(), "the end of a pod", pause_seconds=PAUSE_SECONDS)

    def pods(self) -> dict[str, dict[str, Any]]:
        """Return the pods that the kubelet has, by their names."""
        status, body = self.ask("/pods")
        assert status == 200, body
        return {pod["metadata"]["name"]: pod for pod in json.loads(body)["items"] or []}

    def kill(self) -> None:
        """Kill daemon and kubelet, as when the machine's services crash."""
        for process in (self.kubelet, self.daemon):
            if process is not None:
                process.send_signal(signal.SIGKILL)
                process.wait()
        self.kubelet = self.daemon = None

    def remove(self) -> None:
        """End all of the node; its mounts and links end with its namespaces."""
        self.group.remove()


def _documented_configuration() -> dict[str, object]:
    """Return what readers of docs/cri.md are told to give to a kubelet."""
    _, _, behind = (REPOSITORY / "docs/cri.md").read_text().partition("<!-- kubelet -->\n```yaml\n")
    configuration = yaml.safe_load(behind.partition("```")[0])
    assert isinstance(configuration, dict)
    return configuration


def _run(*words: object) -> str:
    result = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert result.returncode == 0, (words, result.stderr)
    return result.stdout


@contextmanager
def hosts_bridge() -> Iterator[None]:
    """A bridge of this network namespace, on which nodes are."""
    # An address that is not taken from one of its ports, and lost with it.
    _run("ip", "link", "add", BRIDGE, "address", "02:00:00:00:00:01", "up", "type", "bridge")
    try:
        _run("ip", "address", "add", f"{HOST_ADDRESS}/24", "dev", BRIDGE)
        yield
    finally:
        _run("ip", "link", "delete", BRIDGE)
