"""`minit play`: pods of Kubernetes YAML, in the foreground and in the background, up and down."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pods import LOOPBACK_ONLY
from tests.support.stage0_world import World
from tests.support.usersession import NO_GROUPS, SURROUNDING
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")


@pytest.fixture
def world(world: World, stage1_image: Path) -> World:
    """A data directory of its own, with the real stage1."""
    world.stage1 = stage1_image
    return world


def play(world: World, text: str, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Play a file of this text, with the image of the world in the place of IMAGE."""
    file = world.root / "pod.yaml"
    file.write_text(text.replace("IMAGE", str(world.app)))
    if "--down" not in words:
        network = () if "--net" in words else ("--net=none",)
        words = ("--quiet", *network, f"--stage1-path={world.stage1}", *words)
    result = world.minit("play", *words, file, code=code)
    result.stderr = result.stderr.replace(LOOPBACK_ONLY, "")
    return result


ONE = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: IMAGE
    command: [/bin/sh, -c]
    args: ["busybox cat /conf/text; busybox id -u; busybox cat /proc/sys/kernel/hostname; echo > /conf/x; exit $(CODE)"]
    env: [{name: CODE, value: "3"}]
    securityContext: {runAsUser: 7}
    volumeMounts: [{name: conf, mountPath: /conf}]
  volumes: [{name: conf, configMap: {name: conf}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {text: "of the file\\n"}
"""


def test_in_the_foreground(world: World) -> None:
    """Its exit code is the pod's, all is as the file says, and so it is in a pod of the YAML that is made of it."""
    result = play(world, ONE, code=3)
    lines = [line.partition("]: ")[2] for line in (result.stdout + result.stderr).splitlines()]
    assert lines[:3] == ["of the file", "7", "web"]
    assert "Read-only file system" in lines[3] or "can't create" in lines[3]
    [uuid] = world.pods("run")
    text = world.minit("generate", "kube", uuid).stdout
    world.minit("rm", uuid)
    again = play(world, text, code=3)
    assert [line.partition("]: ")[2] for line in (again.stdout + again.stderr).splitlines()] == lines


RIGHTS = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: IMAGE
    command: [/bin/sh, -c, "busybox mkdir /made; busybox mknod /node b 1 1 && exit 7"]
    securityContext: SECURITY
"""


@pytest.mark.host_root("a user makes no devices")
def test_profiles_and_privileges(world: World) -> None:
    """A profile is that of a file on the machine, and of the file that is made with the YAML; privileged is neither."""
    profile = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir"], "action": "SCMP_ACT_ERRNO"}]}
    profiles = world.root / "profiles"
    profiles.mkdir()
    (profiles / "a.json").write_text(json.dumps(profile))
    named = "{seccompProfile: {type: Localhost, localhostProfile: a.json}}"
    text = RIGHTS.replace("SECURITY", named)
    refused = "can't create directory '/made': Operation not permitted"
    assert refused in play(world, text, f"--seccomp-profile-root={profiles}", code=1).stderr
    [uuid] = world.pods("run")
    assert "a profile of system calls, web-main.json" in world.minit("generate", "kube", uuid).stderr
    own = world.root / "own"
    text = world.minit("generate", "kube", f"--seccomp-profile-root={own}", uuid).stdout
    assert json.loads((own / "web-main.json").read_text()) == profile
    world.minit("rm", uuid)
    assert refused in play(world, text, f"--seccomp-profile-root={own}", code=1).stderr
    failed = play(world, text, f"--seccomp-profile-root={world.root}/none", code=254)
    assert "seccompProfile: cannot read" in failed.stderr
    for uuid in world.pods("run"):
        world.minit("rm", uuid)
    assert play(world, RIGHTS.replace("SECURITY", "{privileged: true}"), code=7).stderr == ""


def test_a_pod_of_run_is_played(world: World) -> None:
    """What options of run have said holds in a pod of the YAML that is made of theirs."""
    script = (
        "echo $A $(busybox id -u) $(busybox id -g); busybox pwd; busybox cat /proc/sys/kernel/hostname;"
        " busybox grep CapBnd /proc/self/status; busybox cat /srv/file; echo > /srv/file; echo > /x; exit 4"
    )
    (world.root / "srv").mkdir()
    (world.root / "srv/file").write_text("there\n")
    result = world.minit(
        *("run", "--quiet", f"--stage1-path={world.stage1}", "--net=none", "--hostname=box", "--set-env=A=a b"),
        *(f"--volume=srv,kind=host,source={world.root}/srv,readOnly=true", "--mount=volume=srv,target=/srv", world.app),
        *("--exec=/bin/sh", "--user=7", "--group=8", "--working-dir=/bin", "--caps-remove=CAP_MKNOD,CAP_CHOWN"),
        *(() if SURROUNDING == NO_GROUPS else ("--memory=64M",)),
        *("--readonly-rootfs", "--user-label=tier=front", "--", "-c", script),
        code=4,
    )
    lines = [line.partition("]: ")[2] for line in (result.stdout + result.stderr).splitlines()]
    assert lines[:3] == ["a b 7 8", "/bin", "box"] and "there" in lines
    [uuid] = world.pods("run")
    generated = world.minit("generate", "kube", uuid)
    assert "networks are an option of play, too: --net=none" in generated.stderr
    assert ("memory: " in generated.stdout) == (SURROUNDING != NO_GROUPS)
    assert "tier: front" in generated.stdout
    again = play(world, generated.stdout, code=4)
    assert sorted(line.partition("]: ")[2] for line in (again.stdout + again.stderr).splitlines()) == sorted(lines)


LONG = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: IMAGE, command: [/bin/sh, -c, "echo here; exec busybox sleep 1000"]}
"""


def test_up_and_down(world: World) -> None:
    """Pods in the background run on, are not started twice, and are taken down by the same file."""
    file = LONG.replace("NAME", "one") + "---\n" + LONG.replace("NAME", "two")
    uuids = play(world, file, "--detach").stdout.split()
    assert len(uuids) == 2
    statuses = [json.loads(world.minit("status", "--format=json", uuid).stdout) for uuid in uuids]
    assert [status["state"] for status in statuses] == ["running", "running"]
    assert statuses[0]["user_annotations"]["io.kubernetes.pod.name"] == "one"
    wait_for(lambda: world.minit("logs", uuids[0]).stdout == "here\n", "output")
    assert f'Pod "one" runs already, as pod {uuids[0]}' in play(world, file, "--detach", code=254).stderr
    assert sorted(play(world, file, "--down").stdout.split()) == sorted(f'"{uuid}"' for uuid in uuids)
    assert world.pods("run") == world.pods("exited-garbage") == []
    result = play(world, file, "--down")
    assert result.stdout == "" and 'there is no pod of Pod "one"' in result.stderr


TERMINAL = """
apiVersion: v1
kind: Pod
metadata: {name: shown}
spec:
  restartPolicy: Never
  containers:
  - {name: main, image: IMAGE, tty: true, command: [/bin/sh, -c, "[ -t 1 ] && echo out && echo error >&2"]}
"""


def test_a_terminal_is_logged(world: World) -> None:
    """What an app writes to its terminal is in the log, with the line ends of one."""
    uuid = play(world, TERMINAL, "--detach").stdout.strip()
    world.minit("status", "--wait", uuid)
    lines = [json.loads(line) for line in world.minit("logs", "--format=json", uuid).stdout.splitlines()]
    assert [(line["stream"], line["text"]) for line in lines] == [("stdout", "out\r"), ("stdout", "error\r")]


INIT = """
apiVersion: v1
kind: Pod
metadata: {name: ordered}
spec:
  restartPolicy: OnFailure
  initContainers:
  - name: first
    image: IMAGE
    command: [/bin/sh, -c, "[ -e /v/again ] || { busybox touch /v/again; exit 1; }"]
    volumeMounts: [{name: v, mountPath: /v}]
  - name: side
    image: IMAGE
    restartPolicy: Always
    command: [/bin/sh, -c, "exec busybox sleep 1000"]
  containers:
  - name: main
    image: IMAGE
    command: [/bin/sh, -c, "busybox touch /tmp/up; exec busybox sleep 1000"]
    readinessProbe: {exec: {command: [/bin/sh, -c, "[ -e /tmp/up ]"]}, periodSeconds: 1}
  volumes: [{name: v, hostPath: {path: ROOT/v, type: DirectoryOrCreate}}]
"""


def test_init_containers_and_probes(world: World) -> None:
    """Init containers run one after the other, again if they fail; sidecars stay; a probe decides about readiness."""
    file = INIT.replace("ROOT", str(world.root))
    [uuid] = play(world, file, "--detach").stdout.split()
    world.minit("status", "--wait-ready=60s", uuid)
    events = [json.loads(line) for line in world.minit("events", "--format=json", uuid).stdout.splitlines()]
    names = {"running", "app.ready", "app.exited"}
    steps = [(event["app"], event.get("state", event["event"])) for event in events if "app" in event]
    first = [("first", "running"), ("first", "app.ready"), ("first", "app.exited")]
    others = [(app, step) for app in ("side", "main") for step in ("running", "app.ready")]
    assert [step for step in steps if step[1] in names] == [*first, *first, *others]
    status = json.loads(world.minit("status", "--format=json", uuid).stdout)
    [main] = [app for app in status["apps"] if app["name"] == "main"]
    assert main["health"]["readiness"]["healthy"] is True
    play(world, file, "--down")


HOOKS = """
apiVersion: v1
kind: Pod
metadata: {name: hooked}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: IMAGE
    command: [/bin/sh, -c, "trap 'echo signal; exit 0' TERM; exec 2>/dev/null; while :; do busybox sleep 0.05; done"]
    lifecycle:
      postStart: {exec: {command: [/bin/sh, -c, "echo started"]}}
      preStop: {exec: {command: [/bin/sh, -c, "echo stopping"]}}
"""


def test_hooks(world: World) -> None:
    """One runs when the container has started, one before it is stopped, and so they do in a pod of its YAML."""
    file = HOOKS
    for _ in range(2):
        [uuid] = play(world, file, "--detach").stdout.split()
        wait_for(lambda: world.minit("logs", uuid).stdout == "started\n", "the first hook")  # noqa: B023
        file = world.minit("generate", "kube", uuid).stdout
        world.minit("stop", uuid)
        world.minit("status", "--wait", uuid)
        # Each has a sidecar of its own, so that of the app may be faster.
        assert sorted(world.minit("logs", uuid).stdout.split()) == ["signal", "started", "stopping"]
        world.minit("rm", uuid)


def test_what_cannot_be_had(world: World) -> None:
    """It is named before anything is made; if wanted it is only warned of."""
    text = ONE.replace("env:", "frob: {}\n    env:").replace("spec:", "spec:\n  frills: false", 1)
    result = play(world, text, code=254)
    place = f"{world.root}/pod.yaml document 1: spec"
    assert f"play: {place}.containers[0].frob: not supported\n" in result.stderr
    assert f"play: {place}.frills: not supported (--ignore-unsupported" in result.stderr
    assert world.pods("prepared") == world.pods("run") == []
    assert "warning: " in play(world, text, "--ignore-unsupported", code=3).stderr


DECIDED_LATER = """
apiVersion: v1
kind: Pod
metadata: {name: later, labels: {a: b}}
spec:
  restartPolicy: Never
  securityContext:
    fsGroup: 44
    sysctls: [{name: kernel.shm_rmid_forced, value: "1"}, {name: net.ipv4.ping_group_range, value: "7 9"}]
  initContainers:
  - {name: side, image: IMAGE, restartPolicy: Always, command: [/bin/busybox, sleep, "1000"]}
  containers:
  - name: main
    image: IMAGE
    command: [/bin/sh, -c]
    args:
    - >-
      echo $(IP) $URL $UID; busybox ip -o -4 addr show scope global; busybox cat /proc/sys/kernel/shm_rmid_forced
      /proc/sys/net/ipv4/ping_group_range; busybox stat -c "%a %g" /all/uid /all; busybox cat /all/uid; echo; cat /one
    env:
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
    - {name: UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
    - {name: URL, value: "http://$(HOST):80/"}
    volumeMounts: [{name: all, mountPath: /all}, {name: all, mountPath: /one, subPath: labels}]
  volumes:
  - name: all
    projected:
      defaultMode: 0600
      sources:
      - downwardAPI:
          items:
          - {path: uid, fieldRef: {fieldPath: metadata.uid}}
          - {path: labels, fieldRef: {fieldPath: metadata.labels}}
"""


def test_what_the_start_decides(world: World) -> None:
    """Addresses are put in, files are of the Pod's group, settings are the pod's, and sidecars end with the others."""
    file = DECIDED_LATER.replace("; cat", "; busybox cat")
    result = play(world, file, "--net")
    lines = [line.partition("]: ")[2] for line in result.stdout.splitlines()]
    address, url, uuid = lines[0].split()
    assert f" {address}/" in lines[1] and url.endswith(".1:80/") and len(uuid) == 36
    assert lines[2:] == ["1", "7\t9", "640 44", "2775 44", uuid, 'a="b"']
    assert json.loads(world.minit("status", "--format=json", uuid).stdout)["pod_name"] == "later"
    play(world, file, "--down")


def test_a_deadline(world: World) -> None:
    """A Pod that is still active then is stopped, and has failed for that."""
    file = LONG.replace("NAME", "late").replace("restartPolicy", "activeDeadlineSeconds: 1\n  restartPolicy")
    (world.root / "late.yaml").write_text(file.replace("IMAGE", str(world.app)))
    result = world.minit("play", "--net=none", f"--stage1-path={world.stage1}", world.root / "late.yaml", code=254)
    assert "run: the pod ran for longer than 1 s: it was stopped" in result.stderr


CLAIM = """
apiVersion: v1
kind: Pod
metadata: {name: claim}
spec:
  restartPolicy: Never
  securityContext: {fsGroup: 44, runAsUser: USER, runAsGroup: USER}
  containers:
  - name: main
    image: IMAGE
    command: [/bin/sh, -c, "busybox stat -c '%g %a' /db; for f in /db/*; do busybox cat $f; done; echo USER > /db/USER"]
    volumeMounts: [{name: db, mountPath: /db}]
  volumes: [{name: db, persistentVolumeClaim: {claimName: db}}]
"""


def test_a_group_of_claims(world: World) -> None:
    """Users of the group share a claim, also with files of others from before, and in a pod of the YAML of one."""
    world.minit("volume", "create", "db")
    (world.data / "minit/volumes/db/data/secret").write_text("secret\n")
    (world.data / "minit/volumes/db/data/secret").chmod(0o600)
    result = play(world, CLAIM.replace("USER", "7"))
    assert [line.partition("]: ")[2] for line in (result.stdout + result.stderr).splitlines()] == ["44 2775", "secret"]
    result = play(world, CLAIM.replace("USER", "8"), "--replace")
    assert [line.partition("]: ")[2] for line in result.stdout.splitlines()] == ["44 2775", "7", "secret"]
    [uuid] = world.pods("run")
    text = world.minit("generate", "kube", uuid).stdout
    assert "fsGroup: 44" in text and "supplementalGroups" not in text


JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: sums}
spec:
  completions: 3
  parallelism: 2
  completionMode: Indexed
  backoffLimit: 1
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: main, image: IMAGE, command: [/bin/sh, -c, "echo of $JOB_COMPLETION_INDEX; exit CODE"]}
"""


def test_jobs(world: World) -> None:
    """Pods of a Job run side by side as many as may; when one has failed for good no other is started."""
    result = play(world, JOB.replace("CODE", "0"))
    assert sorted(line.partition("]: ")[2] for line in result.stdout.splitlines()) == ["of 0", "of 1", "of 2"]
    assert "the foreground only" in play(world, JOB, "--detach", code=254).stderr
    result = play(world, JOB.replace("CODE", "7").replace("parallelism: 2", "parallelism: 1"), "--replace", code=7)
    assert [line.partition("]: ")[2] for line in result.stdout.splitlines()] == ["of 0", "of 0"]
    assert len(play(world, JOB, "--down").stdout.split()) == 1
    assert world.pods("prepared") == []


def test_a_background_pod_that_cannot_be_started(world: World) -> None:
    """The reason is told as if it ran in the foreground."""
    text = LONG.replace("NAME", "one") + "  volumes: [{name: v, hostPath: {path: /nonexistent}}]\n"
    text = text.replace('1000"]}', '1000"], volumeMounts: [{name: v, mountPath: /v}]}')
    assert "/nonexistent" in play(world, text, "--detach", code=254).stderr
    typed = text.replace("/nonexistent}", "/nonexistent, type: Directory}")
    assert 'volume "v": /nonexistent: no such file' in play(world, typed, code=254).stderr
    play(world, text, "--down")
    assert world.pods("run") == []


ORDERLY = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 600
  containers:
  - name: main
    image: IMAGE
    command: [/bin/sh, -c]
    args:
    - >-
      trap 'until [ -e /v/end ]; do busybox sleep 0.1; done; echo end-NAME; exit 0' TERM;
      echo "env-$NOTIFY_SOCKET$MINIT_NOTIFY_FD-"; while :; do busybox sleep 1000 & wait; done
    volumeMounts: [{name: v, mountPath: /v}]
    readinessProbe: {exec: {command: [/bin/sh, -c, "[ -e /v/NAME ]"]}, periodSeconds: 1}
  volumes: [{name: v, hostPath: {path: ROOT/v, type: DirectoryOrCreate}}]
"""


class Together:
    """`play` with the pods `one` and `two`, and its service manager."""

    def __init__(self, world: World, listener: socket.socket, descriptor: int) -> None:
        self.pipe: io.FileIO
        self.directory = world.root / "v"
        self.listener = listener
        file = world.root / "pod.yaml"
        text = "---\n".join(ORDERLY.replace("NAME", name) for name in ("one", "two"))
        file.write_text(text.replace("IMAGE", str(world.app)).replace("ROOT", str(world.root)))
        words = ("play", "--quiet", "--net=none", f"--stage1-path={world.stage1}", file)
        self.world = world
        self.process = subprocess.Popen(
            world.command(*words),
            env=world.environment(NOTIFY_SOCKET=str(listener.getsockname()), MINIT_NOTIFY_FD=str(descriptor)),
            pass_fds=(descriptor,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def make_ready(self, *names: str) -> None:
        """Have these pods ready."""
        for name in names:
            wait_for(lambda name=name: self.world.succeeds("status", "--wait=0s", name), name)  # type: ignore[misc]
            (self.directory / name).touch()
            self.world.minit("status", "--wait-ready=60s", name)

    def is_silent(self) -> bool:
        """Return whether the manager was told nothing more."""
        self.listener.setblocking(False)
        try:
            self.listener.recv(100)
        except BlockingIOError:
            return True
        finally:
            self.listener.settimeout(60)
        return False

    def end(self) -> str:
        """Let the apps end, which is no failure, and return what was printed."""
        (self.directory / "end").touch()
        output, errors = self.process.communicate()
        assert self.process.returncode == 0, output + errors
        return output


@pytest.fixture
def together(world: World) -> Iterator[Together]:
    """Two pods that are not ready yet."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(world.root / "notify"))
        listener.settimeout(60)
        reader, writer = os.pipe()
        together = Together(world, listener, writer)
        os.close(writer)
        with io.FileIO(reader) as together.pipe:
            yield together
        if together.process.poll() is None:
            (together.directory / "end").touch()
            together.process.terminate()
            together.process.communicate()


def test_a_manager_is_told_once_of_all_pods(together: Together) -> None:
    """READY comes when the last of them is ready, by socket and descriptor, STOPPING once; no app has either."""
    together.make_ready("one")
    assert together.is_silent()
    together.make_ready("two")
    assert together.listener.recv(100) == b"READY=1"
    assert together.pipe.read() == b"\n"
    together.process.terminate()
    assert together.listener.recv(100) == b"STOPPING=1"
    assert together.end().count("]: env--\n") == 2
    assert together.is_silent()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("group", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_signal_stops_all_pods(world: World, together: Together, number: signal.Signals, group: bool) -> None:
    """Each gets it once, be it sent to `play` or, as by a terminal, to its process group; it ends with them."""
    together.make_ready("one", "two")
    assert together.listener.recv(100) == b"READY=1"
    (os.killpg if group else os.kill)(together.process.pid, number)
    assert together.listener.recv(100) == b"STOPPING=1"
    output = together.end()
    assert ("]: end-one\n" in output, "]: end-two\n" in output) == (True, True)
    for name in ("one", "two"):
        assert world.minit("events", name).stdout.count('"event":"pod.stop-requested"') == 1
    assert together.is_silent()


def test_a_pod_that_fails_before_it_is_ready(world: World) -> None:
    """The manager is never told that all are ready; those that end with 0 have done their work."""
    pods = {name: ORDERLY.replace("NAME", name).split("    args:")[0] for name in ("one", "two")}
    for code in (0, 7):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.bind(str(world.root / f"notify-{code}"))
            listener.setblocking(False)
            ends = {"one": 0, "two": code}
            text = "---\n".join(f"{pods[name]}    args: [exit {ends[name]}]\n    PROBE\n" for name in pods)
            text = text.replace("PROBE", 'readinessProbe: {exec: {command: [/bin/sh, -c, "exit 1"]}}')
            (world.root / "pod.yaml").write_text(text.replace("IMAGE", str(world.app)))
            words = ("--quiet", "--replace", "--net=none", f"--stage1-path={world.stage1}", world.root / "pod.yaml")
            world.minit("play", *words, code=code, NOTIFY_SOCKET=str(listener.getsockname()))
            if code:
                with pytest.raises(BlockingIOError):
                    listener.recv(100)
            else:
                assert listener.recv(100) == b"READY=1"


OF_CLUSTER = """
apiVersion: v1
kind: Pod
metadata: {name: own, namespace: shop}
spec:
  hostUsers: false
  restartPolicy: Never
  nodeName: worker-1
  tolerations: []
  containers:
  - name: main
    image: IMAGE
    command: [/bin/sh, -c]
    args:
    - >-
      busybox cat /proc/self/uid_map | busybox tr -s ' ' : ; busybox ls /access; busybox cat /access/namespace;
      busybox stat -c %u:%g:%a /access/namespace /data; echo new > /data/new
    volumeMounts: [{name: access, mountPath: /access, readOnly: true}, {name: data, mountPath: /data}]
  volumes:
  - name: access
    projected:
      defaultMode: 0600
      sources:
      - serviceAccountToken: {expirationSeconds: 3607, path: token}
      - configMap: {items: [{key: ca.crt, path: ca.crt}], name: kube-root-ca.crt}
      - downwardAPI: {items: [{fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}, path: namespace}]}
  - {name: data, hostPath: {path: DATA}}
"""


@pytest.mark.host_root("pods of a user have no other ids than the user's")
def test_a_pod_of_a_cluster_with_users_of_its_own(world: World) -> None:
    """
    Users are the pod's own, files of volumes have the owners of the disk, and a cluster's own files are missing with
    two warnings; YAML of the pod says so, too.
    """
    data = world.root / "shared"
    data.mkdir()
    played = play(world, OF_CLUSTER.replace("DATA", str(data)))
    warnings = [line for line in played.stderr.splitlines() if "warning" in line]
    assert [line.rpartition(": ")[2] for line in warnings] == [
        "spec.nodeName, spec.tolerations",
        "without token and ca.crt, as there is no API server",
    ]
    said = [line.partition("]: ")[2] for line in played.stdout.splitlines()]
    assert said[1:] == ["namespace", "shop0:0:600", "0:0:755"]
    assert not said[0].startswith(":0:0:")
    assert (data / "new").stat().st_uid == 0
    [uuid] = world.pods("run")
    assert "  hostUsers: false\n" in world.minit("generate", "kube", uuid).stdout
