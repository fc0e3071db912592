"""The services of contrib/, run by the supervisors that they are for, as Debian has them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from google.protobuf.message import Message

from minit.cri.api import cri_pb2 as api
from minit.launcher.cgroups import read_hierarchies
from tests.support.crinode import POD, node_at
from tests.support.owngroup import group_below_own
from tests.support.stage0_world import DEFAULT_APP, REPOSITORY, World, write_app
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

CONTRIB = REPOSITORY / "contrib"
NAME = "minit-pod-web"
QUOTE = '"'
UNPACKED = REPOSITORY / "build/supervisors"
SCRIPT = 'trap "echo stopped; exit 0" TERM; echo started; while :; do busybox sleep 1000 & wait; done'
# The program that the services execute, on the world's data directory and with the real stage1.
PROGRAM = """#!/bin/sh
case "$1 $2" in
"play --down") ;;
"run "* | "play "*) word=$1; shift; set -- "$word" --stage1-path={world.stage1} --net=none "$@" ;;
esac
PYTHONPATH={repository} exec {command} "$@"
"""
YAML = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  containers:
  - {{name: main, image: {image}}}
"""


class Service:
    """A service of one pod, or of the runtime for kubelets, below a directory, and how its supervisor is spoken to."""

    needs: tuple[str, ...]
    name = NAME

    def __init__(self, root: Path, environment: Mapping[str, str]) -> None:
        self.root = root
        self.directory = root / self.name
        self.environment = environment

    def install(self) -> None:
        """Do what the comment in the service says."""
        shutil.copytree(CONTRIB / type(self).__name__.lower(), self.directory)

    def command(self) -> Sequence[object]:
        """Return the words that start the supervisor, and by it the service."""
        raise NotImplementedError

    def wait_ready(self) -> None:
        """Return when the supervisor takes the service for ready."""
        raise NotImplementedError

    def process(self) -> int:
        """Return the number of the process that the supervisor has started."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop the service, and return when its process has ended."""
        raise NotImplementedError

    def clean_up(self) -> None:
        """Remove what a supervisor that has ended has left."""

    def call(self, *words: object) -> str:
        """Run a program of the supervisor's to its end, which must be a success."""
        result: subprocess.CompletedProcess[str] = subprocess.run(
            [str(word) for word in words],
            env=self.environment,
            cwd=self.root,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert result.returncode == 0, f"{words}: {result.stdout}{result.stderr}"
        return result.stdout


class Runit(Service):
    """Knows by ./check that a pod is ready."""

    needs = ("runsv", "sv", "svlogd")

    def command(self) -> Sequence[object]:
        return ("runsv", self.directory)

    def wait_ready(self) -> None:
        wait_for(lambda: (self.directory / "supervise/ok").exists(), "runsv")
        self.call("sv", "-w", "60", "start", self.directory)

    def process(self) -> int:
        return int((self.directory / "supervise/pid").read_text().strip() or 0)

    def stop(self) -> None:
        self.call("sv", "-w", "60", "stop", self.directory)


class S6(Service):
    """Knows by a line feed to a descriptor that a pod is ready."""

    needs = ("s6-svscan", "s6-svc", "s6-svwait", "s6-svstat", "s6-log")

    def command(self) -> Sequence[object]:
        return ("s6-svscan", self.root)

    def wait_ready(self) -> None:
        wait_for(lambda: (self.directory / "supervise/status").exists(), "s6-supervise")
        self.call("s6-svwait", "-U", "-t", "60000", self.directory)

    def process(self) -> int:
        return int(self.call("s6-svstat", "-o", "pid", self.directory))

    def stop(self) -> None:
        self.call("s6-svc", "-wD", "-T", "60000", "-d", self.directory)


class Dinit(Service):
    """Knows it as s6 does."""

    needs = ("dinit", "dinitctl")

    def install(self) -> None:
        text = (CONTRIB / "dinit/minit-pod").read_text().replace("minit-pod-NAME", NAME)
        settings, program = self.environment["MINIT_SETTINGS"], self.root.parent / "bin/minit"
        text = text.replace(f"/etc/default/{NAME}", settings).replace("/usr/bin/minit", str(program))
        if Path(settings).read_text().startswith("PLAY"):
            words = f"command = {program} play --quiet --replace {self.root.parent}/pod.yaml"
            text = "\n".join(words if line.startswith("command") else line for line in text.splitlines()) + "\n"
        self.directory.with_name("dinit.d").mkdir()
        (self.root / "dinit.d" / NAME).write_text(text.replace("/var/log", f"{self.root.parent}/logs"))

    def command(self) -> Sequence[object]:
        return ("dinit", "-q", "-d", self.root / "dinit.d", "-p", self.root / "socket", self.name)

    def wait_ready(self) -> None:
        wait_for(lambda: (self.root / "socket").exists(), "dinit")
        self._ask("start", self.name)

    def process(self) -> int:
        found = [line for line in self._ask("status", self.name).splitlines() if "Process ID:" in line]
        return int(found[0].partition(":")[2]) if found else 0

    def stop(self) -> None:
        self._ask("stop", self.name)

    def _ask(self, *words: object) -> str:
        return self.call("dinitctl", "-p", self.root / "socket", *words)


class OpenRC(Service):
    """Starts a supervisor of its own for the service, and knows no readiness."""

    needs = ("openrc-run", "supervise-daemon")

    def install(self) -> None:
        scripts, settings = self.root / "etc/init.d", self.root / "etc/conf.d"
        scripts.mkdir(parents=True)
        settings.mkdir()
        self._install_script(scripts)
        words = (line.partition("=") for line in Path(self.environment["MINIT_SETTINGS"]).read_text().splitlines())
        lines = [
            *(f'{word.lower()}="{value.strip(QUOTE)}"' for word, _, value in words),
            f"minit={self.root.parent}/bin/minit",
            f"output_log={self.root.parent}/logs/{self.name}.log",
            # The control groups are those of the tests.
            "unset -f cgroup_add_service cgroup_set_limits cgroup2_set_limits",
        ]
        (settings / self.name).write_text("\n".join(lines) + "\n")
        for name in ("daemons", "exclusive", "failed", "inactive", "options", "started", "starting", "stopping", "tmp"):
            Path("/run/openrc", name).mkdir(parents=True, exist_ok=True)
        Path("/run/openrc/softlevel").write_text("default\n")

    def _install_script(self, scripts: Path) -> None:
        shutil.copy(CONTRIB / "openrc/minit-pod", scripts)
        (scripts / self.name).symlink_to("minit-pod")

    def command(self) -> Sequence[object]:
        # Without dependencies, which are services of the machine.
        call = f"{self.root}/etc/init.d/{self.name} --nodeps"
        return ("sh", "-c", f'{call} start; sleep infinity & trap "{call} stop; kill $!" TERM; wait $!')

    def wait_ready(self) -> None:
        wait_for(lambda: (Path("/run/openrc/started") / self.name).is_symlink(), "openrc")

    def process(self) -> int:
        path = Path("/run/openrc/options") / self.name / "child_pid"
        return int(path.read_text().strip() or 0) if path.exists() else 0

    def stop(self) -> None:
        self.call(self.root / "etc/init.d" / self.name, "--nodeps", "stop")


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        return sock.connect_ex(str(path)) == 0


class Systemd(Service):
    """Knows by sd_notify(3) that a pod is ready; as the manager of a user, root, whose units are the same."""

    needs = ("systemctl", "/usr/lib/systemd/systemd")

    def __init__(self, root: Path, environment: Mapping[str, str]) -> None:
        own = {"XDG_RUNTIME_DIR": f"{root}/run", "XDG_CONFIG_HOME": f"{root}/config", "HOME": str(root)}
        super().__init__(root, {**environment, **own})
        self._groups = [group_below_own(hierarchy, "manager") for hierarchy in read_hierarchies()]

    def install(self) -> None:
        settings, above = self.environment["MINIT_SETTINGS"], self.root.parent
        kind = "play" if Path(settings).read_text().startswith("PLAY") else "pod"
        text = (CONTRIB / f"systemd/minit-{kind}@.service").read_text()
        text = text.replace("/etc/default/minit-pod-%i", settings).replace(
            "/etc/minit/play/%i.yaml", f"{above}/pod.yaml"
        )
        text = text.replace("/usr/bin/minit", f"{above}/bin/minit")
        text = text.replace("[Service]", f"[Service]\nStandardOutput=append:{above}/logs/log\nStandardError=inherit")
        self.unit = f"minit-{kind}@web.service"
        units = self.root / "config/systemd/user"
        (units / "default.target.wants").mkdir(parents=True)
        (units / f"minit-{kind}@.service").write_text(text)
        (units / "default.target.wants" / self.unit).symlink_to(f"../minit-{kind}@.service")
        (self.root / "run").mkdir(mode=0o700)
        # Or else the manager takes it that the machine has another one.
        Path("/run/systemd/system").mkdir(parents=True, exist_ok=True)

    def command(self) -> Sequence[object]:
        # In a group of its own: it takes over all processes of the one that it finds itself in. One of cpuset has no
        # processors, and takes no process.
        entered = [group for group in self._groups if "cpuset" not in group.parts]
        for group in entered:
            group.mkdir()
        files = " ".join(f"{group}/cgroup.procs" for group in entered)
        program = "exec /usr/lib/systemd/systemd --user --log-target=console"
        return ("sh", "-c", f"for file in {files}; do echo $$ > $file; done; {program}")

    def wait_ready(self) -> None:
        # The socket has a name before it is listened on.
        wait_for(lambda: _is_served(self.root / "run/systemd/private"), "systemd")
        self.call("systemctl", "--user", "start", self.unit)

    def process(self) -> int:
        return int(self.call("systemctl", "--user", "show", "--property=MainPID", "--value", self.unit))

    def stop(self) -> None:
        self.call("systemctl", "--user", "stop", self.unit)

    def clean_up(self) -> None:
        for group in self._groups:
            for path in sorted((group, *group.rglob("*/")), reverse=True) if group.exists() else ():
                path.rmdir()


class GeneratedSystemd(Systemd):
    """A unit that `minit generate systemd` has written."""

    name = "minit-web"

    def install(self) -> None:
        super().install()
        self.unit = f"{self.name}.service"
        text = self.environment["GENERATED"].replace(
            "[Service]", f"[Service]\nStandardOutput=append:{self.root.parent}/logs/log\nStandardError=inherit"
        )
        (self.root / "config/systemd/user" / self.unit).write_text(text)


class GeneratedOpenRC(OpenRC):
    """A script that `minit generate openrc` has written."""

    name = "minit-web"

    def _install_script(self, scripts: Path) -> None:
        (scripts / self.name).write_text(self.environment["GENERATED"])
        (scripts / self.name).chmod(0o755)


class RunitCri(Runit):
    """`minit cri` for runit."""

    name = "minit-cri"

    def install(self) -> None:
        shutil.copytree(CONTRIB / "runit-cri", self.directory)
        shutil.copytree(CONTRIB / "runit/log", self.directory / "log")


class S6Cri(S6):
    """`minit cri` for s6."""

    name = "minit-cri"

    def install(self) -> None:
        shutil.copytree(CONTRIB / "s6-cri", self.directory)
        shutil.copytree(CONTRIB / "s6/log", self.directory / "log")

    def wait_ready(self) -> None:
        wait_for(lambda: (self.directory / "supervise/status").exists(), "s6-supervise")
        self.call("s6-svwait", "-u", "-t", "60000", self.directory)


class DinitCri(Dinit):
    """`minit cri` for dinit."""

    name = "minit-cri"

    def install(self) -> None:
        text = (CONTRIB / "dinit/minit-cri").read_text().replace("/usr/bin/minit", f"{self.root.parent}/bin/minit")
        lines = Path(self.environment["MINIT_SETTINGS"]).read_text().splitlines()
        data, words = (line.partition("=")[2].strip('"') for line in lines)
        text = text.replace("/var/lib/minit-cri cri", f"{data} cri {words}")
        (self.root / "dinit.d").mkdir()
        (self.root / "dinit.d" / self.name).write_text(text.replace("/var/log", f"{self.root.parent}/logs"))


class OpenRCCri(OpenRC):
    """`minit cri` for OpenRC."""

    name = "minit-cri"

    def _install_script(self, scripts: Path) -> None:
        shutil.copy(CONTRIB / "openrc/minit-cri", scripts)


@pytest.fixture
def unpacked() -> Iterator[None]:
    """The programs that are unpacked, where they look for each other, for this session alone."""
    if not UNPACKED.exists():
        yield
        return
    lower = f"lowerdir={UNPACKED}/usr:/usr"
    subprocess.run(["mount", "-t", "overlay", "-o", lower, "none", "/usr"], check=True)
    yield
    subprocess.run(["umount", "--lazy", "/usr"], check=True)


@pytest.fixture
def environment(world: World, stage1_image: Path, unpacked: None) -> dict[str, str]:
    """What services find: the command, and files in the place of those of /etc and /var."""
    world.stage1 = stage1_image
    program = world.root / "bin/minit"
    program.parent.mkdir()
    text = PROGRAM.format(world=world, repository=REPOSITORY, command=" ".join(world.command()))
    program.write_text(text)
    program.chmod(0o755)
    write_app(world.app, app={**DEFAULT_APP, "exec": ["/bin/sh", "-c", SCRIPT]})
    (world.root / "logs").mkdir()
    (world.root / "services").mkdir()
    environment = world.environment()
    return {
        **environment,
        "PATH": f"{program.parent}:{environment['PATH']}",
        "MINIT_SETTINGS": str(world.root / "settings"),
        "MINIT_LOGS": str(world.root / "logs"),
    }


@pytest.fixture(params=["run", "play"])
def settings(request: pytest.FixtureRequest, world: World, environment: dict[str, str]) -> str:
    """Settings for a pod that `run` makes, or `play`."""
    if request.param == "run":
        text = f"POD={world.app}\n"
    else:
        text = f"PLAY={world.root}/pod.yaml\n"
        (world.root / "pod.yaml").write_text(YAML.format(name=NAME, image=world.app))
    Path(environment["MINIT_SETTINGS"]).write_text(text)
    return str(request.param)


@pytest.fixture
def own_run(tmp_path: Path) -> Iterator[None]:
    """A /run where services of the machine are seen, and none of those here are left."""
    options = f"lowerdir=/run,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    (tmp_path / "upper").mkdir()
    (tmp_path / "work").mkdir()
    subprocess.run(["mount", "-t", "overlay", "-o", options, "none", "/run"], check=True)
    yield
    subprocess.run(["umount", "--lazy", "/run"], check=True)


def install(kind: type[Service], world: World, environment: dict[str, str]) -> Service:
    """Install a service, if there is its supervisor."""
    if not all(shutil.which(name, path=environment["PATH"]) for name in kind.needs):
        pytest.skip(f"no {kind.__mro__[-3].__name__.lower()} on PATH or in build/supervisors")
    installed = kind(world.root / "services", environment)
    installed.install()
    return installed


@pytest.fixture(params=[Runit, S6, Dinit, OpenRC, Systemd])
def service(
    request: pytest.FixtureRequest, world: World, environment: dict[str, str], settings: str, own_run: None
) -> Service:
    """A service that is installed."""
    return install(request.param, world, environment)


@pytest.fixture
def supervisor(service: Service) -> Iterator[subprocess.Popen[bytes]]:
    """The supervisor, which is told to end as it is at a shutdown."""
    with supervised(service) as process:
        yield process
    service.clean_up()


@contextmanager
def supervised(service: Service) -> Iterator[subprocess.Popen[bytes]]:
    """Run a supervisor."""
    words = [str(word) for word in service.command()]
    with subprocess.Popen(words, env=service.environment, stdin=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)


def test_a_service(service: Service, supervisor: subprocess.Popen[bytes], world: World, settings: str) -> None:
    """The supervisor knows when its pod is ready, starts it again after a crash, and stops it in order."""
    first = wait_until_ready(service, world, settings, [])
    assert supervisor.poll() is None
    os.kill(service.process(), signal.SIGKILL)
    second = wait_until_ready(service, world, settings, first)
    service.stop()
    if settings == "run" or isinstance(service, Systemd):
        wait_for(lambda: not world.pods("run") + world.pods("exited-garbage"), "the removal of the pod")
    else:
        assert "state=exited\n" in world.minit("status", *second).stdout
    assert [line for line in logged(world).splitlines() if "]: " in line][-1].endswith("]: stopped")


@pytest.mark.parametrize("kind", [RunitCri, S6Cri, DinitCri, OpenRCCri])
def test_a_runtime(kind: type[Service], world: World, environment: dict[str, str], own_run: None) -> None:
    """The supervisor starts a daemon again that was killed; pods go on without one, and the next one knows them."""
    socket = world.root / "cri.sock"
    options = f"--listen=unix://{socket} --net=none --stage1-path={world.stage1}"
    Path(environment["MINIT_SETTINGS"]).write_text(f'DATA={world.data}\nOPTIONS="{options}"\n')
    service = install(kind, world, environment)

    async def sandboxes(name: str = "ListPodSandbox", request: Message | None = None) -> Any:
        with trio.fail_after(100):
            while True:
                try:
                    async with node_at(socket) as node:
                        return await node.ask(name, request)
                except (OSError, ExceptionGroup):  # it is being started
                    await trio.sleep(0.05)

    with supervised(service):
        service.wait_ready()
        request = api.RunPodSandboxRequest(config=api.PodSandboxConfig(metadata=POD))
        uuid = trio.run(sandboxes, "RunPodSandbox", request).pod_sandbox_id
        process = service.process()
        os.kill(process, signal.SIGKILL)
        wait_for(lambda: service.process() not in (0, process), "another daemon")
        assert [one.id for one in trio.run(sandboxes).items] == [uuid]
        service.stop()
        assert world.minit("status", uuid).stdout.startswith("state=running\n")
    world.minit("rm", "--force", uuid)
    assert logged(world).count("serving") == 2


@pytest.mark.parametrize(("kind", "word"), [(GeneratedSystemd, "systemd"), (GeneratedOpenRC, "openrc")])
def test_a_generated_service(
    kind: type[Service], word: str, world: World, environment: dict[str, str], own_run: None
) -> None:
    """A supervisor starts an ended pod as the last time, in the foreground, and stops the pod in order."""
    Path(environment["MINIT_SETTINGS"]).write_text("POD=\n")
    assert "has not run yet" in world.minit("generate", word, world.prepare(), code=254).stderr
    flags = (f"--stage1-path={world.stage1}", "--net=none", "--detach", "--name=web")
    uuid = world.minit("run", *flags, world.app).stdout.strip()
    world.minit("stop", "--wait", "web")
    text = world.minit("generate", word, "web").stdout
    text = text.replace(f"{sys.executable} -m minit", f"{world.root}/bin/minit")  # systemd
    text = text.replace(f"command={sys.executable}", f"command={world.root}/bin/minit").replace("'-m minit ", "'")
    service = install(kind, world, {**environment, "GENERATED": text})
    with supervised(service):
        service.wait_ready()
        wait_for(lambda: world.succeeds("status", "--wait-ready=60s", "web"), "the pod to be ready")
        assert world.minit("start", "--attach", "web", code=254).stderr.endswith("is already running\n")
        service.stop()
        assert "state=exited\n" in world.minit("status", uuid).stdout
    service.clean_up()
    assert [line for line in logged(world).splitlines() if "]: " in line][-1].endswith("]: stopped")


def logged(world: World) -> str:
    """Return what the service's own log has."""
    return "".join(path.read_text() for path in (world.root / "logs").rglob("*") if path.is_file())


def wait_until_ready(service: Service, world: World, settings: str, before: list[str]) -> list[str]:
    """Return the UUID of the service's only pod, another than before, when it is ready and its app has begun."""
    wait_for(lambda: len(uuids := world.pods("run")) == 1 and uuids != before, "the pod")
    service.wait_ready()
    if isinstance(service, OpenRC) or (settings == "play" and isinstance(service, Runit)):
        # Which do not know it.
        wait_for(lambda: world.succeeds("status", "--wait-ready=60s", NAME), "the pod to be ready")
    assert world.minit("status", "--wait-ready=0s", NAME).stdout.startswith("state=running\n")
    wait_for(lambda: logged(world).count("]: started\n") == 1 + len(before), "the app's output")
    return world.pods("run")
