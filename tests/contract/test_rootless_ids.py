"""Pods of a user without root, by the ids that the user has: the own id alone, or subordinate ids behind it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import tars
from tests.support.layers import archive, busybox_layer, config_document, docker_files, layer
from tests.support.ordinaryuser import HOME, NAME, OrdinaryUser
from tests.support.stage0_world import without_progress, write_app
from tests.support.terminal import Terminal
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes a user, which needs root")

IMAGE = f"docker-archive:{HOME}/owners.tar"
OF_APP = f"docker-archive:{HOME}/of-app.tar"
POD = ("--net=none", f"--stage1-path={HOME}/stage1.aci")
OWNERS = "cd /var && busybox stat -c %n=%u:%g . file link other"
REMEDY = "let root add subordinate ids (see docs/rootless.md)"
WARNING = "run: warning: your own id is the only one of your pods, as root: "


def owned_layer(uid: int, gid: int) -> bytes:
    """A layer with files of a user."""
    owner = {"uid": uid, "gid": gid}
    return layer(
        tars.directory("var/", **owner),
        tars.file("var/file", b"of the image", mode=0o600, **owner),
        tars.symlink("var/link", "file", **owner),
        tars.hard_link("var/other", "var/file", **owner),
    )


def image(name: str, *layers: bytes, user: str = "") -> bytes:
    """An archive of docker save, with a shell and more layers, and a user."""
    every = (busybox_layer(), *layers)
    config = config_document(every, {"Entrypoint": ["/bin/sh"], "User": user})
    return archive(docker_files(*every, tags=(f"{name}:1",), config=config))


def with_images(user: OrdinaryUser, stage1: Path) -> OrdinaryUser:
    """Return a user with the images at home."""
    user.give("stage1.aci", stage1)
    user.give("owners.tar", image("owners", owned_layer(33, 34)))
    user.give("of-app.tar", image("of-app", user="app"))
    return user


@pytest.fixture(scope="module")
def one_id(tmp_path_factory: pytest.TempPathFactory, stage1_image: Path) -> Iterator[OrdinaryUser]:
    """A user without subordinate ids."""
    user = with_images(OrdinaryUser(tmp_path_factory.mktemp("user"), has_ids=False), stage1_image)
    yield user
    user.remove()


@pytest.fixture
def single(one_id: OrdinaryUser) -> Iterator[OrdinaryUser]:
    """The user without subordinate ids, whose pods are removed after the test, and with them every process."""
    yield one_id
    one_id.remove_pods()


@pytest.fixture(scope="module")
def many_ids(tmp_path_factory: pytest.TempPathFactory, stage1_image: Path) -> Iterator[OrdinaryUser]:
    """A user with 65536 subordinate ids."""
    user = with_images(OrdinaryUser(tmp_path_factory.mktemp("user"), blocks=1), stage1_image)
    yield user
    user.remove()


@pytest.fixture
def user(many_ids: OrdinaryUser) -> Iterator[OrdinaryUser]:
    """The user with subordinate ids, whose pods are removed after the test, and with them every process."""
    yield many_ids
    many_ids.remove_pods()


@pytest.fixture(scope="module")
def two_blocks(tmp_path_factory: pytest.TempPathFactory, stage1_image: Path) -> Iterator[OrdinaryUser]:
    """A user with ids for a pod with ids of its own."""
    user = with_images(OrdinaryUser(tmp_path_factory.mktemp("user"), blocks=2), stage1_image)
    yield user
    user.remove()


@pytest.fixture
def rich(two_blocks: OrdinaryUser) -> Iterator[OrdinaryUser]:
    """That user, whose pods are removed after the test, and with them every process."""
    yield two_blocks
    two_blocks.remove_pods()


@pytest.fixture
def other(tmp_path: Path, stage1_image: Path) -> Iterator[OrdinaryUser]:
    """A user without subordinate ids for one test."""
    user = with_images(OrdinaryUser(tmp_path, has_ids=False), stage1_image)
    yield user
    user.remove_pods()
    user.remove()


def shell(user: OrdinaryUser, script: str, *flags: str, app: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a script as the app of a pod to its end."""
    return user.minit("run", *POD, *flags, IMAGE, *app, "--", "-c", script)


def start(user: OrdinaryUser, name: str, *flags: str) -> None:
    """Start a pod with a name, in the background."""
    words = ("run", "--detach", f"--name={name}", *POD, *flags, IMAGE, "--", "-c", "exec busybox sleep 1000")
    done = user.minit(*words)
    assert done.returncode == 0, done.stderr


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what an app has said; the command has succeeded."""
    assert done.returncode == 0, done.stderr
    return [line.partition("]: ")[2] for line in done.stdout.splitlines()]


def test_the_own_id_is_root_and_owns_all(single: OrdinaryUser) -> None:
    """Without subordinate ids an app is root, all files of the image are root's, and the exit code is as everywhere."""
    assert said(shell(single, f"busybox id; {OWNERS}")) == [
        "uid=0(root) gid=0(root)",
        *(".=0:0", "file=0:0", "link=0:0", "other=0:0"),
    ]
    assert said(shell(single, OWNERS, "--no-overlay")) == [".=0:0", "file=0:0", "link=0:0", "other=0:0"]
    assert shell(single, "exit 42").returncode == 42


def test_the_warning_is_said_once(other: OrdinaryUser) -> None:
    """The first command warns, with the line for the administrator; later commands do not, with a new namespace too."""
    lines = "usermod --add-subuids 100000-165535 --add-subgids 100000-165535"
    assert f"{WARNING}you have no subordinate ids: let root run: {lines} {NAME}\n" in shell(other, "true").stderr
    other.wait_end()
    assert "warning: your own id" not in shell(other, "true").stderr


def test_a_user_without_newuidmap_has_one_id(other: OrdinaryUser) -> None:
    """Where newuidmap is not installed the own id is the only one, and the warning says what to install."""
    other.give_ids(1)
    programs = other.home / "bin"
    programs.mkdir()
    (programs / "flock").symlink_to("/usr/bin/flock")
    path, other.environment["PATH"] = other.environment["PATH"], f"{HOME}/bin"
    done = other.run("/usr/bin/env", *other.minit_words("run", *POD, IMAGE, "--", "-c", "busybox id"))
    other.environment["PATH"] = path
    assert said(done) == ["uid=0(root) gid=0(root)"]
    assert f"{WARNING}newuidmap is not installed, which maps your subordinate ids" in done.stderr
    assert "apt install uidmap" in done.stderr


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--user=1000",), 'user "1000": there is no user 1000, only 0'),
        (("--group=1001",), 'group "1001": there is no group 1001, only 0'),
        (("--supplementary-gids=5",), "supplementary group: there is no group 5, only 0"),
    ],
)
def test_an_app_of_another_user_is_refused(single: OrdinaryUser, flags: tuple[str, ...], problem: str) -> None:
    """An app with an id that the user lacks is refused in one line, and no pod is left."""
    shell(single, "true")
    single.remove_pods()
    done = shell(single, "true", app=flags)
    assert (done.returncode, without_progress(done.stderr)) == (254, f'run: app "owners": {problem}: {REMEDY}\n')
    assert single.minit("list", "--quiet").stdout == ""


def test_an_image_of_another_user_is_refused(single: OrdinaryUser) -> None:
    """The name of a user in an image is looked up there; the option for root helps."""
    done = single.minit("run", *POD, OF_APP, "--", "-c", "true")
    problem = f'run: app "of-app": user "app": there is no user 7, only 0: {REMEDY}\n'
    assert done.returncode == 254 and done.stderr.endswith(problem), done.stderr
    assert single.minit("list", "--quiet").stdout == ""
    as_root = single.minit("run", *POD, OF_APP, "--user=0", "--group=0", "--", "-c", "busybox id")
    assert said(as_root) == ["uid=0(root) gid=0(root)"]


def test_an_entered_command_is_root_alone(single: OrdinaryUser) -> None:
    """A command runs as root, with a terminal too, and is refused as somebody else."""
    start(single, "web")
    assert single.minit("enter", "web", "/bin/busybox", "id").stdout == "uid=0(root) gid=0(root)\n"
    done = single.minit("enter", "--user=1000", "web", "/bin/busybox", "id")
    problem = f"enter: cannot run a command as 1000:0: there is no user 1000, only 0: {REMEDY}\n"
    assert (done.returncode, done.stdout, done.stderr) == (254, "", problem)
    with Terminal() as terminal:
        script = "test -t 0 && busybox stat -c %u:%g $(busybox tty); exit 7"
        words = single.words(single.minit_words("enter", "web", "/bin/busybox", "sh", "-c", script))
        entered = subprocess.Popen(words, **terminal.options)
        terminal.expect(rb"0:0\r\n")
        assert terminal.finish(entered) == 7


def test_a_pod_at_a_terminal(single: OrdinaryUser) -> None:
    """An interactive pod has a terminal, whose group is root, as there is no other."""
    script = "test -t 0 && busybox stat -c %u:%g $(busybox tty); exit 7"
    with Terminal() as terminal:
        words = single.words(single.minit_words("run", "--interactive", *POD, IMAGE, "--", "-c", script))
        running = subprocess.Popen(words, **terminal.options)
        terminal.expect(rb"0:0\r\n")
        assert terminal.finish(running) == 7


def test_an_attachable_terminal(single: OrdinaryUser) -> None:
    """An app has a terminal for clients."""
    words = ("--stdin=tty", "--stdout=tty", "--stderr=tty")
    script = "busybox stat -c %u:%g $(busybox tty); read -r word; echo got $word; exec busybox sleep 1000"
    done = single.minit("run", "--detach", "--name=web", *POD, IMAGE, *words, "--", "-c", script)
    assert done.returncode == 0, done.stderr
    with Terminal() as terminal:
        attached = subprocess.Popen(single.words(single.minit_words("attach", "web")), **terminal.options)
        terminal.expect(rb"0:0\r\n")
        terminal.type(b"hello\n")
        terminal.expect(rb"got hello")
        assert single.minit("rm", "--force", "web").returncode == 0
        terminal.finish(attached)


def test_a_life_of_a_pod_with_one_id(single: OrdinaryUser) -> None:
    """A pod is stopped, started with its files, and copied to and from; all files are the user's outside."""
    start(single, "web", "--volume=files,kind=named", "--mount=volume=files,target=/var")
    single.give("mine", b"mine")
    for words in (
        ("cp", f"{HOME}/mine", "web:/etc/mine"),
        ("cp", "--archive", "/etc/passwd", "web:/var/theirs"),
        ("stop", "web"),
        ("start", "web"),
        ("cp", "web:/etc/mine", f"{HOME}/back"),
    ):
        done = single.minit(*words)
        assert done.returncode == 0, done.stderr
    assert (single.home / "back").read_bytes() == b"mine"
    done = single.minit("enter", "web", "/bin/sh", "-c", f"{OWNERS}; busybox stat -c %u:%g theirs /etc/mine")
    assert set(done.stdout.split()) == {".=0:0", "file=0:0", "link=0:0", "other=0:0", "0:0"}
    owners = {path.lstat().st_uid for path in (single.home / ".local").rglob("*")}
    assert owners == {single.uid}


def test_a_user_who_gets_subordinate_ids_gets_the_owners(other: OrdinaryUser) -> None:
    """Trees of a user with one id are no trees of the same user with more, whose files have the image's owners."""
    alone = said(shell(other, OWNERS))
    other.remove_pods()
    other.give_ids(1)
    of_image = [".=33:34", "file=33:34", "link=33:34", "other=33:34"]
    for flags in (), ("--no-overlay",):
        assert said(shell(other, OWNERS, *flags)) == of_image
    other.remove_pods()
    other.give_ids(0)
    assert said(shell(other, OWNERS)) == alone == [".=0:0", "file=0:0", "link=0:0", "other=0:0"]
    other.remove_pods()
    other.give_ids(1)
    assert other.minit("image", "gc", "--grace-period=0s").returncode == 0
    assert not [*other.home.glob(".local/share/minit/cas/tree/deps-*")]


def test_a_user_who_loses_the_subordinate_ids(other: OrdinaryUser) -> None:
    """A closed file of a lost id is refused in a line with the reason, until the ids or a new image are there."""
    other.give_ids(1)
    of_image = said(shell(other, OWNERS))
    other.remove_pods()
    other.give_ids(0)
    shell(other, "true")  # hears the warning
    for words in ("run", *POD, IMAGE), ("image", "verify", "owners:1"):
        done = other.minit(*words)
        [line] = [line for line in without_progress(done.stderr).splitlines() if "failed to verify" not in line]
        assert "has a file of a user that you no longer have: let root add subordinate ids" in line, line
        assert done.returncode == 254 and "damaged" not in line, line
    other.remove_pods()
    other.give_ids(1)
    assert said(shell(other, OWNERS)) == of_image
    other.remove_pods()
    other.give_ids(0)
    assert other.minit("image", "rm", "owners:1").returncode == 0
    assert said(shell(other, OWNERS)) == [".=0:0", "file=0:0", "link=0:0", "other=0:0"]


def build(user: OrdinaryUser, text: str, **files: bytes) -> subprocess.CompletedProcess[str]:
    """Build a Containerfile in a context with files."""
    context = user.home / "context"
    shutil.rmtree(context, ignore_errors=True)
    context.mkdir()
    for name, data in files.items():
        (context / name).write_bytes(data)
    (context / "Containerfile").write_text(text)
    return user.minit("build", "--net=none", POD[1], "--tag=localhost/built", f"{HOME}/context")


def test_builds_with_one_id(single: OrdinaryUser) -> None:
    """Files of a build are root's, those of archives too; an owner that somebody asks for is refused in one line."""
    archived = layer(tars.directory("./", uid=9), tars.file("added", uid=9, gid=9))
    look = 'CMD ["-c", "cd /srv; busybox stat -c %n=%u:%g . *"]'
    text = f"FROM {IMAGE}\nADD file /etc/\nADD files /srv/\nRUN echo x > /srv/mine\n{look}\n"
    done = build(single, text, file=b"x", files=archived)
    assert done.returncode == 0, done.stderr
    done = single.minit("run", *POD, "localhost/built")
    assert said(done) == [".=0:0", "added=0:0", "mine=0:0"]
    for step, problem in (
        ("COPY --chown=7:8 file /etc/", "owner 7:8: there is no user 7, only 0"),
        ("RUN --mount=type=cache,target=/c,uid=7 true", "cache /c: there is no user 7, only 0"),
        ("USER app\nRUN true", 'user "app": there is no user 7, only 0'),
    ):
        done = build(single, f"FROM {IMAGE}\n{step}\n", file=b"x")
        assert done.returncode == 254
        assert f"{problem}: {REMEDY}\n" in done.stderr, done.stderr
    assert single.minit("volume", "list", "--quiet").stdout == ""


POD_FILE = """
apiVersion: v1
kind: Pod
metadata: {{name: played}}
spec:
  restartPolicy: Never
  securityContext: {{{security}}}
  volumes: [{{name: files, emptyDir: {{}}}}]
  containers:
  - name: web
    image: {image}
    args: ["-c", "busybox id"]
    volumeMounts: [{{name: files, mountPath: /files}}]
"""


@pytest.mark.parametrize(
    ("security", "problem"),
    [("runAsUser: 7", 'user "7": there is no user 7'), ("fsGroup: 8", "supplementary group: there is no group 8")],
)
def test_a_played_pod_of_another_user_is_refused(single: OrdinaryUser, security: str, problem: str) -> None:
    """A security context with an id that the user lacks is refused in one line, and nothing is left."""
    assert single.minit("fetch", IMAGE).returncode == 0
    path = single.give("pod.yaml", POD_FILE.format(security=security, image="owners:1").encode())
    done = single.minit("play", *POD, path)
    assert done.returncode == 254
    assert done.stderr.splitlines()[-1].endswith(f'app "web": {problem}, only 0: {REMEDY}'), done.stderr
    assert single.minit("list", "--quiet").stdout == ""


def test_device_nodes_of_an_image_are_left_out(user: OrdinaryUser, single: OrdinaryUser) -> None:
    """An image with device nodes runs without these, as an image to build on too: nobody makes nodes without root."""
    nodes = layer(
        tars.directory("srv/"),
        tars.header("srv/null", b"3", device=(1, 3)),
        tars.header("srv/disk", b"4", device=(8, 0)),
        tars.file("srv/file"),
    )
    for who in user, single:
        reference = f"docker-archive:{who.give('nodes.tar', image('nodes', nodes))}"
        for flags in (), ("--no-overlay",):
            done = who.minit("run", *POD, *flags, reference, "--", "-c", "cd /srv; echo *; echo > /dev/null")
            assert said(done) == ["file"]
        context = f'FROM {reference}\nRUN echo > /srv/more\nCMD ["-c", "cd /srv; echo *"]\n'
        assert build(who, context).returncode == 0
        assert said(who.minit("run", *POD, "localhost/built")) == ["file more"]


@pytest.mark.parametrize(("uid", "gid", "lack"), [(70000, 0, "user 70000"), (0, 65537, "group 65537")])
def test_an_owner_without_an_id_is_refused(user: OrdinaryUser, uid: int, gid: int, lack: str) -> None:
    """An image with an owner beyond the subordinate ids is refused with file and id, as layers and as an ACI."""
    entry = tarfile.TarInfo("rootfs/etc/far")
    entry.uid, entry.gid = uid, gid
    far = image("far", layer(tars.file("etc/far", uid=uid, gid=gid)))
    write_app(user.home / "far.aci", files={})
    with tarfile.open(user.home / "far.aci", "a") as tar:
        tar.addfile(entry)
    user.give("far.aci", (user.home / "far.aci").read_bytes())
    for reference in (f"docker-archive:{user.give('far.tar', far)}", f"{HOME}/far.aci"):
        done = user.minit("run", *POD, reference, "--", "-c", "true")
        errors = without_progress(done.stderr)
        assert (done.returncode, errors.count("\n")) == (254, 1), errors
        assert errors.endswith(f'etc/far": there is no {lack}, only 0 to 65536: {REMEDY}\n'), errors
    assert user.minit("list", "--quiet").stdout == ""


def test_an_app_without_an_id_is_refused(user: OrdinaryUser) -> None:
    """An app of a user beyond the subordinate ids is refused, and one of the last of these runs."""
    assert said(shell(user, "busybox id -u", app=("--user=65536",))) == ["65536"]
    done = shell(user, "true", app=("--user=65537",))
    problem = f'run: app "owners": user "65537": there is no user 65537, only 0 to 65536: {REMEDY}\n'
    assert (done.returncode, without_progress(done.stderr)) == (254, problem)
    start(user, "web")
    done = user.minit("enter", "--user=65537", "web", "/bin/busybox", "id")
    problem = f"enter: cannot run a command as 65537:0: there is no user 65537, only 0 to 65536: {REMEDY}\n"
    assert (done.returncode, without_progress(done.stderr)) == (254, problem)


def test_a_pod_with_ids_of_its_own(rich: OrdinaryUser) -> None:
    """Root of such a pod is another id of the user's; the pod is entered, looked at, started again and removed."""
    script = f"busybox cat /proc/self/uid_map; {OWNERS}; echo > /dev/null; exec busybox sleep 1000"
    done = rich.minit("run", "--detach", "--name=web", "--private-users", *POD, IMAGE, "--", "-c", script)
    assert done.returncode == 0, done.stderr
    log = rich.minit("logs", "web")
    assert log.stdout.split() == ["0", "65536", "65536", ".=33:34", "file=33:34", "link=33:34", "other=33:34"]
    for seen in ("events", "web"), ("events",):
        assert '"event":"pod.ready"' in rich.minit(*seen).stdout
    assert rich.minit("enter", "web", "/bin/busybox", "id").stdout.startswith("uid=0(root) gid=0(root)")
    assert rich.minit("enter", "--user=7", "web", "/bin/busybox", "id", "-u").stdout == "7\n"
    refused = rich.minit("enter", "--user=65536", "web", "/bin/busybox", "id")
    problem = "there is no user 65536, only 0 to 65535: the pod has no more ids, by --private-users\n"
    assert refused.stderr == f"enter: cannot run a command as 65536:0: {problem}"
    rich.give("mine", b"mine")
    for words in ("cp", f"{HOME}/mine", "web:/etc/mine"), ("stop", "web"), ("start", "web"):
        assert rich.minit(*words).returncode == 0
    assert rich.minit("enter", "web", "/bin/busybox", "stat", "-c%u", "/etc/mine").stdout == "0\n"
    assert rich.minit("rm", "--force", "web").returncode == 0
    assert not [*rich.home.glob(".local/share/minit/pods/*/*")]


def test_apps_of_a_pod_with_ids_of_its_own(rich: OrdinaryUser) -> None:
    """An app of another user is added to such a pod, which has the control groups that are delegated to the user."""
    done = rich.minit("app", "sandbox", "--detach", "--name=box", "--private-users", *POD)
    assert done.returncode == 0, done.stderr
    script = "echo > /dev/null; busybox id -u; busybox cat /proc/self/cgroup; exec busybox sleep 1000"
    added = rich.minit("app", "add", "box", IMAGE, "--name=late", "--user=7", "--group=8", "--", "-c", script)
    assert added.returncode == 0, added.stderr
    assert rich.minit("app", "start", "box", "--app=late").returncode == 0
    wait_for(lambda: "late" in rich.minit("logs", "box").stdout, "the output of the app")
    first, *groups = rich.minit("logs", "box").stdout.splitlines()
    assert first == "7" and any("late" in group for group in groups)


def test_ids_beyond_those_of_the_user_are_refused(user: OrdinaryUser, rich: OrdinaryUser) -> None:
    """Without a second block, with other ids, and with all in use the refusal is one line, and no pod is left."""
    words = ("run", *POD, IMAGE, "--", "-c", "true")
    beyond = "run: --private-users needs 65536 ids beyond the first 65536 of yours"
    for who, flag, problem in (
        (user, "--private-users", f"{beyond}: {REMEDY}"),
        (
            rich,
            "--private-users=131000:1000",
            f"run: --private-users=131000:1000: not all of these ids are yours: {REMEDY}",
        ),
    ):
        done = who.minit(*words[:1], flag, *words[1:])
        assert (done.returncode, without_progress(done.stderr)) == (254, f"{problem}\n")
        assert who.minit("list", "--quiet").stdout == ""
    assert rich.minit("run", "--private-users", *words[1:]).returncode == 0
    done = rich.minit("run", "--private-users", *words[1:])
    assert done.returncode == 254
    assert "no ids are left for --private-users: remove pods that have ended" in done.stderr


@pytest.mark.parametrize(
    ("volume", "annotation", "where"),
    [
        ("files,kind=host,source=/etc", "--annotation=minit/idmap=files", 'app "owners": minit/idmap=files'),
        ("files,kind=named", "--no-overlay", 'app "owners": minit/idmap=files'),
    ],
)
def test_mapped_owners_are_refused(rich: OrdinaryUser, volume: str, annotation: str, where: str) -> None:
    """Volumes that show the owners of the disk are refused before anything is made: the kernel maps owners for root."""
    flags = (f"--volume={volume}", "--mount=volume=files,target=/files")
    app = (annotation,) if annotation.startswith("--annotation") else ()
    done = rich.minit("run", "--private-users", "--no-overlay", *POD, *flags, IMAGE, *app, "--", "-c", "true")
    assert done.returncode == 254
    assert without_progress(done.stderr).startswith(f"run: {where}: the kernel maps owners"), done.stderr
    assert rich.minit("list", "--quiet").stdout == rich.minit("volume", "list", "--quiet").stdout == ""
