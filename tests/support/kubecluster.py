"""The control plane of a cluster: etcd, API server, controller manager and scheduler, and kubectl."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.kubenode import HOST_ADDRESS, PROGRAMS, Group
from tests.support.waiting import wait_for

_TOKEN = "of-the-tests"
_STORE = "http://127.0.0.1:2379"
_SERVER = f"https://{HOST_ADDRESS}:6443"
# So short that a test of a node's death is one; a node tells that it lives each two seconds.
_GRACE_SECONDS = 10
_TOLERATION_SECONDS = 2
# Each look is a kubectl, which takes some processor time.
_PAUSE_SECONDS = 0.5


class KubeCluster:
    """A control plane on the bridge of the hosts, which lets everybody with its token do everything."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.logs = directory / "log"
        self.logs.mkdir(parents=True)
        self.kubeconfig = directory / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(_kubeconfig()))
        self.group = Group("control-plane")

    def start(self) -> None:
        """Start all of it, and return when it answers."""
        key = self.directory / "service-accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        tokens = self.directory / "tokens"
        tokens.write_text(f'{_TOKEN},tests,1,"system:masters"\n')
        certificates = self.directory / "certificates"
        self._run(
            "etcd",
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={_STORE}",
            f"--advertise-client-urls={_STORE}",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--initial-advertise-peer-urls=http://127.0.0.1:2380",
            "--initial-cluster=default=http://127.0.0.1:2380",
        )
        self._run(
            "kube-apiserver",
            f"--etcd-servers={_STORE}",
            f"--bind-address={HOST_ADDRESS}",
            "--secure-port=6443",
            f"--advertise-address={HOST_ADDRESS}",
            f"--cert-dir={certificates}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=AlwaysAllow",
            "--service-cluster-ip-range=10.251.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged=true",
            "--feature-gates=EphemeralContainers=true",
            f"--default-not-ready-toleration-seconds={_TOLERATION_SECONDS}",
            f"--default-unreachable-toleration-seconds={_TOLERATION_SECONDS}",
        )
        wait_for(
            lambda: self.try_kubectl("get", "--raw", "/readyz").returncode == 0,
            "the API server",
            pause_seconds=_PAUSE_SECONDS,
        )
        self._run(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            "--leader-elect=false",
            "--port=0",
            "--bind-address=127.0.0.1",
            f"--cert-dir={certificates}",
            # It makes this directory, whether there are plugins or not.
            f"--flex-volume-plugin-dir={self.directory / 'plugins'}",
            f"--service-account-private-key-file={key}",
            "--node-monitor-period=1s",
            f"--node-monitor-grace-period={_GRACE_SECONDS}s",
            # The usual one in ten seconds would go to the other node, for each second in which it was not ready yet.
            "--node-eviction-rate=10",
        )
        self._run(
            "kube-scheduler",
            f"--kubeconfig={self.kubeconfig}",
            "--leader-elect=false",
            "--port=0",
            "--bind-address=127.0.0.1",
            f"--cert-dir={certificates}",
        )
        wait_for(
            lambda: self.try_kubectl("get", "serviceaccount", "default").returncode == 0,
            "the controllers",
            pause_seconds=_PAUSE_SECONDS,
        )

    def _run(self, program: str, *words: object) -> None:
        self.group.start([PROGRAMS / program, *words], self.logs / program)

    def words(self, *words: object) -> list[str]:
        """Return the words of a command of kubectl."""
        return [str(PROGRAMS / "kubectl"), f"--kubeconfig={self.kubeconfig}", *map(str, words)]

    def environment(self) -> dict[str, str]:
        """Return the environment of such a command, which keeps things at home."""
        return {**os.environ, "HOME": str(self.directory)}

    def try_kubectl(self, *words: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl to its end."""
        return subprocess.run(
            self.words(*words),
            env=self.environment(),
            input=stdin or "",
            capture_output=True,
            text=True,
            check=False,
            timeout=110,
        )

    def kubectl(self, *words: object, stdin: str | None = None) -> str:
        """Run kubectl, expect success, and return what it printed."""
        result = self.try_kubectl(*words, stdin=stdin)
        assert result.returncode == 0, (words, result.stdout, result.stderr)
        return result.stdout

    @contextmanager
    def running_kubectl(self, *words: object) -> Iterator[subprocess.Popen[str]]:
        """Have kubectl run in the block, and its output in a pipe."""
        with subprocess.Popen(self.words(*words), env=self.environment(), text=True, stdout=subprocess.PIPE) as process:
            try:
                yield process
            finally:
                process.kill()

    def apply(self, *objects: dict[str, Any]) -> None:
        """Have these objects be as they are given."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def get(self, *words: object) -> Any:
        """Return an object, or the items of a list."""
        found = json.loads(self.kubectl("get", "-o", "json", *words))
        return found["items"] if found["kind"] == "List" else found

    def pods(self, app: str) -> list[dict[str, Any]]:
        """Return the pods with a label that are not on their way out."""
        return [pod for pod in self.get("pods", "-l", f"app={app}") if "deletionTimestamp" not in pod["metadata"]]

    def wait(self, what: str, probe: Callable[[], Any], timeout_seconds: float = 90) -> Any:
        """Return the first true result of a probe; its absence is told with all that the cluster has said."""
        try:
            return wait_for(probe, what, timeout_seconds, _PAUSE_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.report()}") from None

    def wait_for_node(self, name: str) -> None:
        """Return when pods can be put on a node."""
        words = ("wait", "--for=condition=Ready", f"node/{name}", "--timeout=1s")
        self.wait(f"node {name}", lambda: self.try_kubectl(*words).returncode == 0)

    def report(self) -> str:
        """Return what a person would look at first."""
        events = ("get", "events", "--sort-by=.lastTimestamp")
        return "\n".join(self.try_kubectl(*words).stdout for words in (("get", "pods", "-A", "-o", "wide"), events))

    def remove(self) -> None:
        """End it."""
        self.group.remove()


def _kubeconfig() -> dict[str, Any]:
    cluster = {"server": _SERVER, "insecure-skip-tls-verify": True}  # the API server has made its certificate
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tests", "cluster": cluster}],
        "users": [{"name": "tests", "user": {"token": _TOKEN}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
        "current-context": "tests",
    }
