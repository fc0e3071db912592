"""The expectations of users of `run` for their apps, from the command line on, by minit's own stage0 and a real rkt."""

from __future__ import annotations

import json
import os
import pty
import re
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.commands import Stage0


def test_a_host_volume(stage0: Stage0, tmp_path: Path) -> None:
    """Files of the app on a volume are on the host, and stay there when the pod is removed."""
    (tmp_path / "host").mkdir()
    volume = (f"--volume=data,kind=host,source={tmp_path}/host", "--mount=volume=data,target=/deep/down/data")
    stage0.shell("echo kept > /deep/down/data/file", *volume)
    assert stage0.call("rm", stage0.uuid).returncode == 0
    assert (tmp_path / "host/file").read_text() == "kept\n"


def test_a_read_only_volume(stage0: Stage0, tmp_path: Path) -> None:
    """The app reads it and cannot write, and its other volume stays writable."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "one/file").write_text("fixed\n")
    output = stage0.shell(
        "cat /one/file; echo x > /one/file || echo refused; echo x > /two/file && echo written",
        f"--volume=one,kind=host,source={tmp_path}/one,readOnly=true",
        f"--volume=two,kind=host,source={tmp_path}/two",
        "--mount=volume=one,target=/one",
        "--mount=volume=two,target=/two",
    )
    assert output == "fixed\nrefused\nwritten\n"


def test_a_volume_of_a_missing_directory(stage0: Stage0, tmp_path: Path) -> None:
    """The exit code is 1 and the message that of systemd-nspawn, which tools look for."""
    volume = (f"--volume=data,kind=host,source={tmp_path}/none", "--mount=volume=data,target=/data")
    result = stage0.try_shell("true", *volume)
    assert result.returncode == 1
    assert f"Failed to stat {tmp_path}/none: No such file or directory" in result.stderr


def test_an_implicit_volume(stage0: Stage0) -> None:
    """A mount point that no volume is given for gets an empty one, with a warning."""
    points = [{"name": "db", "path": "/var/lib/db"}]
    result = stage0.try_shell("echo x > /var/lib/db/file && cat /var/lib/db/file", mountPoints=points)
    assert (result.returncode, "]: x\n" in result.stdout) == (0, True)
    assert 'no volume specified for mount point "db", implicitly creating an "empty" volume' in result.stderr


def test_an_empty_volume(stage0: Stage0) -> None:
    """It has the mode and owner that were asked for."""
    volume = ("--volume=tmp,kind=empty,mode=0750,uid=5,gid=6", "--mount=volume=tmp,target=/cache")
    assert stage0.shell("stat -c '%a %u %g' /cache", *volume) == "750 5 6\n"


def test_a_read_only_root(stage0: Stage0) -> None:
    """Only volumes and the kernel's own places stay writable."""
    output = stage0.shell(
        "echo x > /file || echo refused; echo x > /cache/file && echo x > /dev/shm/file && echo ok > /dev/stdout",
        "--volume=tmp,kind=empty",
        "--mount=volume=tmp,target=/cache",
        app=("--readonly-rootfs=true",),
    )
    assert output == "refused\nok\n"


@pytest.mark.parametrize("flag, text", [("--user=user2", '"user2" user'), ("--group=group2", '"group2" group')])
def test_an_unknown_user(stage0: Stage0, flag: str, text: str) -> None:
    """The exit code is 254, and the message names who is not in the image."""
    result = stage0.try_shell("true", app=(flag,))
    assert result.returncode == 254
    assert f"{text} not found" in result.stderr


def test_ids_and_directory(stage0: Stage0) -> None:
    """User, groups and working directory are what the options say."""
    app = ("--user=7", "--group=8", "--supplementary-gids=9,10", "--working-dir=/bin")
    assert stage0.shell("id -u; id -g; id -G; pwd", app=app) == "7\n8\n8 9 10\n/bin\n"


def test_the_environment(stage0: Stage0, tmp_path: Path) -> None:
    """--set-env beats --set-env-file, which beats --environment, which beats the image."""
    (tmp_path / "env").write_text("# comment\nB=file\nC=file\n")
    output = stage0.shell(
        "echo $A $B $C $D $container $AC_APP_NAME",
        f"--set-env-file={tmp_path}/env",
        "--set-env=C=set",
        app=("--environment=A=app", "--environment=B=app"),
        environment=[{"name": name, "value": "image"} for name in "ABCD"],
    )
    assert output == "app file set image rkt busybox\n"


def test_names(stage0: Stage0) -> None:
    """The host name is in its files, and no resolv.conf comes from nowhere."""
    output = stage0.shell(
        "hostname; cat /etc/hostname; grep ^127 /etc/hosts; ls /etc/resolv.conf 2>/dev/null; readlink /etc/mtab",
        "--hostname=my_pod",
    )
    local = "127.0.0.1 localhost localhost.domain localhost4 localhost4.localdomain4 my_pod"
    assert output == f"my_pod\nmy_pod\n{local}\n../proc/self/mounts\n"


def test_dns_and_hosts(stage0: Stage0) -> None:
    """The options become the files, line for line."""
    output = stage0.shell(
        "cat /etc/resolv.conf; grep -A9 Added /etc/hosts",
        *("--dns=8.8.8.8", "--dns=8.8.4.4", "--dns-search=a.example", "--dns-opt=debug", "--dns-domain=d.example"),
        "--hosts-entry=10.0.0.1=db",
    )
    resolv = "# Generated by rkt run\n\nsearch a.example\nnameserver 8.8.8.8\nnameserver 8.8.4.4\noptions debug\n"
    assert output.startswith(f"{resolv}domain d.example\n# Added by rkt run --hosts-entry\n10.0.0.1 db\n")


def test_files_of_the_host(stage0: Stage0) -> None:
    """`host` shows the host's own."""
    output = stage0.shell("cat /etc/hosts /etc/resolv.conf", "--dns=host", "--hosts-entry=host")
    assert output == Path("/etc/hosts").read_text() + Path("/etc/resolv.conf").read_text()


def test_event_handlers(stage0: Stage0, tmp_path: Path) -> None:
    """pre-start runs before the app and post-stop after it, as root, with the app's prefix on their output."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log/order").touch()
    (tmp_path / "log/order").chmod(0o666)
    handlers = [
        {"name": name, "exec": ["/bin/sh", "-c", f"echo {name} $(id -u) | tee -a /log/order"]}
        for name in ("pre-start", "post-stop")
    ]
    result = stage0.try_shell(
        "echo main $(id -u) | tee -a /log/order",
        f"--volume=log,kind=host,source={tmp_path}/log",
        "--mount=volume=log,target=/log",
        app=("--user=7",),
        eventHandlers=handlers,
    )
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "log/order").read_text() == "pre-start 0\nmain 7\npost-stop 0\n"
    assert "]: pre-start 0\n" in result.stdout and "]: post-stop 0\n" in result.stdout


def test_an_interactive_app(stage0: Stage0) -> None:
    """It has a terminal, the caller's TERM and its size; without the option it has none."""
    script = "test -t 0 && test -t 1 && test -t 2 && tty && echo $TERM || echo none"
    assert stage0.shell(script) == "none\n"
    ours, theirs = pty.openpty()
    words = stage0.run_words("--interactive", stage0.image(), "--exec=/bin/sh", "--", "-c", script)
    result = stage0.call(*words, stdin=theirs, capture_output=False, stdout=theirs, stderr=theirs)
    os.close(theirs)
    assert result.returncode == 0
    shown = b""
    # It ends with an error, pty(7).
    with suppress(OSError):
        while piece := os.read(ours, 1000):
            shown += piece
    os.close(ours)
    # What takes long on a busy machine has a bar before.
    lines = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown.decode()).splitlines()
    assert lines[-2:] == ["/dev/pts/0", os.environ.get("TERM", "vt100")]


def test_user_annotations(stage0: Stage0) -> None:
    """They are shown in the status."""
    stage0.shell("true", app=("--user-annotation=owner=me", "--user-label=tier=db"))
    status = json.loads(stage0.call("status", "--format=json", stage0.uuid).stdout)
    [app] = status["apps"]
    assert (app["user_annotations"], app["user_labels"]) == ({"owner": "me"}, {"tier": "db"})
