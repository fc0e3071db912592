"""The files of an app in /etc: its host name, its hosts file, the configuration of DNS."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from tests.support.pods import MakePod, PodDirectory, shell
from tests.support.refusals import assert_refused

BOTH = pytest.mark.parametrize("overlay", [True, False], ids=["overlay", "flat"])
FALLBACK = "127.0.0.1 localhost localhost.domain localhost4 localhost4.localdomain4"


def output_of(pod: PodDirectory, *flags: str) -> str:
    """Return what the apps of a pod that succeeds wrote, without their names."""
    result = pod.run(*flags)
    assert (result.returncode, result.stderr) == (0, ""), result
    return "".join(line.partition(": ")[2] + "\n" for line in result.stdout.splitlines())


# The host name.


@BOTH
@pytest.mark.parametrize("flags", [(), pytest.param(("--hostname=my_host",), marks=pytest.mark.rootless)])
@pytest.mark.private_users
def test_the_host_name(make_pod: MakePod, own_rootfs: Path, flags: tuple[str, ...], overlay: bool) -> None:
    """/etc/hostname hides the image's own, has mode 0644, says the pod's name as it is, and may be changed."""
    (own_rootfs / "etc/hostname").write_text("image\n")
    script = "cat /etc/hostname; stat -c %A:%u:%g /etc/hostname; echo x > /etc/hostname; hostname"
    pod = make_pod({"a": shell(script)}, own_rootfs, overlay=overlay)
    name = "my_host" if flags else f"rkt-{pod.uuid}"
    assert output_of(pod, *flags) == f"{name}\n-rw-r--r--:0:0\n{name}\n"
    assert pod.file("a", "/etc/hostname").read_text() == "image\n"


# Hosts.


@BOTH
def test_the_fallback_for_hosts(make_pod: MakePod, overlay: bool) -> None:
    """An app without a hosts file gets the stage1 image's, with the name of the pod after those of 127.0.0.1."""
    pod = make_pod({"a": shell("cat /etc/hosts; stat -c %A:%u:%g /etc/hosts")}, overlay=overlay)
    fallback = (pod.tree / "rootfs/etc/hosts-fallback").read_text()
    assert f"\n{FALLBACK}\n" in fallback
    expected = fallback.replace(FALLBACK, f"{FALLBACK} rkt-{pod.uuid}")
    assert output_of(pod) == f"{expected}-rw-r--r--:0:0\n"
    assert (pod.stage1 / "etc/hosts-fallback").read_text() == fallback


@pytest.mark.parametrize("place", ["image", "link", "file", "directory", "read-only directory"])
def test_hosts_that_an_app_has_stay(make_pod: MakePod, own_rootfs: Path, tmp_path: Path, place: str) -> None:
    """Those of its image, also by a link, and those of a volume."""
    mounts, volumes = [], []
    (tmp_path / "hosts").write_text("1.2.3.4 mine\n")
    if place == "image":
        shutil.copy(tmp_path / "hosts", own_rootfs / "etc/hosts")
    elif place == "link":
        shutil.copy(tmp_path / "hosts", own_rootfs / "mine")
        (own_rootfs / "etc/hosts").symlink_to("/mine")
    else:
        source = tmp_path / "hosts" if place == "file" else tmp_path
        volumes = [{"name": "v", "kind": "host", "source": str(source), "readOnly": place.startswith("read-only")}]
        mounts = [{"volume": "v", "path": "/etc/hosts" if place == "file" else "/etc"}]
    pod = make_pod({"a": shell("cat /etc/hosts", mounts=mounts)}, own_rootfs, volumes=volumes)
    assert output_of(pod) == "1.2.3.4 mine\n"
    assert (tmp_path / "hosts").read_text() == "1.2.3.4 mine\n"


@pytest.mark.private_users
def test_each_app_has_a_hosts_file_of_its_own(make_pod: MakePod) -> None:
    """Changes by one app are seen by no other app."""
    pod = make_pod(
        {
            "a": shell("echo changed >> /etc/hosts && touch /dev/shm/done"),
            "b": shell("while [ ! -e /dev/shm/done ]; do sleep 0.01; done; grep -c changed /etc/hosts || true"),
        }
    )
    assert output_of(pod) == "0\n"


@BOTH
@pytest.mark.private_users
def test_what_an_app_writes_into_its_files(make_pod: MakePod, overlay: bool) -> None:
    """It is in the app's own /dev, whose size bounds it: nothing of it reaches the disk, nor what is in /dev."""
    script = (
        "for n in 1 2 3; do head -c 40000000 /dev/zero >> /etc/hosts 2>/dev/null || break; done; du -m /etc/hosts;"
        " ls -A /dev | grep minit; true"
    )
    pod = make_pod({"a": shell(script), "b": shell("head -c 9 /etc/hostname")}, overlay=overlay)
    size, other = sorted(output_of(pod, "--hostname=some-name").splitlines())
    assert (size, other) == ("64\t/etc/hosts", "some-name")
    assert not [path for path in pod.path.rglob("*") if path.is_file() and path.stat().st_size > 60_000_000]


def test_files_in_a_read_only_root(make_pod: MakePod) -> None:
    """They cannot be written there, as nothing of the root can."""
    script = "for n in hostname hosts resolv.conf; do (: >> /etc/$n) 2>/dev/null && echo $n; done; echo done"
    pod = make_pod({"a": shell(script, readOnlyRootFS=True)})
    (pod.stage1 / "etc/rkt-resolv.conf").write_text("nameserver 9.9.9.9\n")
    assert output_of(pod, "--dns-conf-mode=resolv=stage0") == "done\n"


def test_a_link_that_leads_nowhere(make_pod: MakePod, own_rootfs: Path) -> None:
    """The hosts file is where the image's link leads, inside the image."""
    (own_rootfs / "etc/hosts").symlink_to("../../../run/made/hosts")
    pod = make_pod({"a": shell("grep -c rkt- /run/made/hosts /etc/hosts")}, own_rootfs)
    assert output_of(pod) == "/run/made/hosts:1\n/etc/hosts:1\n"


@BOTH
@pytest.mark.parametrize("name", ["hosts", "resolv.conf"])
def test_files_of_the_host(make_pod: MakePod, own_rootfs: Path, name: str, overlay: bool) -> None:
    """They are the host's own, byte for byte, hide those of the image, and cannot be written."""
    (own_rootfs / "etc" / name).write_text("image\n")
    script = f"cat /etc/{name}; ! echo x 2>/dev/null >> /etc/{name}"
    pod = make_pod({"a": shell(script), "b": shell("true")}, own_rootfs, overlay=overlay)
    before = Path(f"/etc/{name}").read_text()
    key = name.partition(".")[0]
    assert output_of(pod, f"--dns-conf-mode={key}=host") == before
    assert Path(f"/etc/{name}").read_text() == before
    assert pod.file("a", f"/etc/{name}").read_text() == "image\n"


@pytest.mark.private_users
def test_hosts_from_stage0(make_pod: MakePod, own_rootfs: Path) -> None:
    """They are bound over the image's with the name of the pod, and the app may change its own copy."""
    (own_rootfs / "etc/hosts").write_text("image\n")
    pod = make_pod({"a": shell("cat /etc/hosts; echo x >> /etc/hosts")}, own_rootfs)
    (pod.stage1 / "etc/rkt-hosts").write_text("# x\n10.0.0.1 a b\n127.0.0.1 localhost\n::1 l\n")
    expected = "# x\n10.0.0.1 a b\n127.0.0.1 localhost name\n::1 l\n"
    assert output_of(pod, "--dns-conf-mode=resolv=default,hosts=stage0", "--hostname=name") == expected
    assert "x\n10" in (pod.stage1 / "etc/rkt-hosts").read_text()
    assert pod.file("a", "/etc/hosts").read_text() == "image\n"


# DNS.


@pytest.mark.parametrize("mode", ["default", "none"])
def test_without_dns_there_is_no_configuration(make_pod: MakePod, mode: str) -> None:
    """An image without the file stays without it."""
    pod = make_pod({"a": shell("! cat /etc/resolv.conf 2>/dev/null && ls /etc")})
    assert "resolv.conf" not in output_of(pod, f"--dns-conf-mode=resolv={mode},hosts=default")


@pytest.mark.parametrize("mode", ["default", "none"])
def test_dns_of_the_image_stays(make_pod: MakePod, own_rootfs: Path, mode: str) -> None:
    """Without a network that knows better the image's own file is used, and can be written."""
    (own_rootfs / "etc/resolv.conf").write_text("nameserver 1.2.3.4\n")
    pod = make_pod({"a": shell("cat /etc/resolv.conf; echo >> /etc/resolv.conf")}, own_rootfs)
    assert output_of(pod, f"--dns-conf-mode=resolv={mode},hosts=default") == "nameserver 1.2.3.4\n"


@BOTH
def test_dns_from_stage0_beats_a_volume(make_pod: MakePod, tmp_path: Path, overlay: bool) -> None:
    """The user's files for the pod are bound over a volume, each app having a copy of its own."""
    (tmp_path / "file").write_text("volume\n")
    section = shell(
        "echo more >> /etc/resolv.conf; cat /etc/resolv.conf", mounts=[{"volume": "v", "path": "/etc/resolv.conf"}]
    )
    volumes = [{"name": "v", "kind": "host", "source": str(tmp_path / "file")}]
    pod = make_pod({"a": section, "b": section}, volumes=volumes, overlay=overlay)
    (pod.stage1 / "etc/rkt-resolv.conf").write_text("# Generated by rkt run\n\nnameserver 9.9.9.9\n")
    expected = "# Generated by rkt run\n\nnameserver 9.9.9.9\nmore\n"
    assert sorted(output_of(pod, "--dns-conf-mode=resolv=stage0").splitlines()) == sorted(2 * expected.splitlines())
    assert (tmp_path / "file").read_text() == "volume\n"


@pytest.mark.parametrize("mode", ["stage0", "host", "default"])
def test_volumes_over_files(make_pod: MakePod, tmp_path: Path, mode: str) -> None:
    """With minit/volumes-over-files an app has its volumes in the places of all three files."""
    names = ("hosts", "hostname", "resolv.conf")
    (tmp_path / "file").write_text("volume\n")
    section = shell(
        f"cat {' '.join(f'/etc/{name}' for name in names)}",
        mounts=[{"volume": "v", "path": f"/etc/{name}"} for name in names],
        annotations=[{"name": "minit/volumes-over-files", "value": "true"}],
    )
    pod = make_pod({"a": section}, volumes=[{"name": "v", "kind": "host", "source": str(tmp_path / "file")}])
    for name in ("resolv.conf", "hosts"):
        (pod.stage1 / f"etc/rkt-{name}").write_text("of the pod\n")
    assert output_of(pod, f"--dns-conf-mode=resolv={mode},hosts={mode}") == 3 * "volume\n"


@pytest.mark.parametrize(("mode", "name"), [("resolv=stage0", "rkt-resolv.conf"), ("hosts=stage0", "rkt-hosts")])
def test_a_file_that_stage0_did_not_write(make_pod: MakePod, mode: str, name: str) -> None:
    """The line names it, and the pod leaves nothing behind."""
    pod = make_pod({"a": shell("true")})
    assert_refused(pod, pod.run(f"--dns-conf-mode={mode}"), f"stage1/rootfs/etc/{name}: no such file or directory")


# In the way.


@pytest.mark.parametrize("mode", ["hosts=default", "hosts=stage0", "hosts=host", "resolv=stage0", "resolv=host"])
def test_a_read_only_volume_over_etc(make_pod: MakePod, tmp_path: Path, mode: str) -> None:
    """A file that the user did not ask for is left out; one that the user asked for is an error that names it."""
    tmp_path.chmod(0o755)
    section = shell("ls /etc", mounts=[{"volume": "v", "path": "/etc"}])
    volumes = [{"name": "v", "kind": "host", "source": str(tmp_path), "readOnly": True}]
    pod = make_pod({"a": section}, volumes=volumes)
    for name in ("rkt-hosts", "rkt-resolv.conf"):
        (pod.stage1 / "etc" / name).write_text("x\n")
    if mode == "hosts=default":
        assert output_of(pod) == ""
    else:
        result = pod.run(f"--dns-conf-mode={mode}")
        assert (result.returncode, result.stderr.count("\n")) == (254, 1)
        name = "/etc/hosts" if mode.startswith("hosts") else "/etc/resolv.conf"
        assert result.stderr.startswith('stage1: app "a": mount: ') and f"{name}" in result.stderr
        assert result.stderr.endswith("read-only file system\n")
    assert os.listdir(tmp_path) == []


@pytest.mark.private_users
def test_a_volume_over_etc_that_can_be_written(make_pod: MakePod, tmp_path: Path) -> None:
    """The mount points are made in the volume, empty, as for any mount below it."""
    tmp_path.chmod(0o755)
    section = shell("cat /etc/hostname; grep -c rkt- /etc/hosts", mounts=[{"volume": "v", "path": "/etc"}])
    pod = make_pod({"a": section}, volumes=[{"name": "v", "kind": "host", "source": str(tmp_path)}])
    assert output_of(pod, "--hostname=rkt-x") == "rkt-x\n1\n"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"hostname": b"", "hosts": b""}


@pytest.mark.parametrize("name", ["hostname", "hosts"])
def test_a_directory_in_place_of_a_file(make_pod: MakePod, own_rootfs: Path, name: str) -> None:
    """A directory at /etc/hosts is the image's own business, one at /etc/hostname an error that names it."""
    (own_rootfs / "etc" / name).mkdir()
    result = make_pod({"a": shell("true")}, own_rootfs).run()
    assert result.returncode == (0 if name == "hosts" else 254)
    if result.returncode:
        assert result.stderr == 'stage1: app "a": mount: /etc/hostname: cannot mount a file on a directory\n'


# Other files.


def test_special_files(make_pod: MakePod) -> None:
    """The links of /dev, and the mode of ptmx as programs see it."""
    script = (
        "stat -L -c '%n %A %u:%g' /dev/ptmx; for n in fd stdin stdout stderr; do readlink /dev/$n; done;"
        "echo through > /dev/stdout; [ ! -e /dev/log ] && echo no log"
    )
    assert output_of(make_pod({"a": shell(script)})) == (
        "/dev/ptmx crw-rw-rw- 0:0\n/proc/self/fd\n/proc/self/fd/0\n/proc/self/fd/1\n/proc/self/fd/2\nthrough\nno log\n"
    )


@BOTH
def test_the_hosts_own_files_are_never_touched(make_pod: MakePod, own_rootfs: Path, overlay: bool) -> None:
    """An image whose links lead to the host's files by their names gets its own, at those names inside its root."""
    sentinel = {name: Path("/etc", name).read_bytes() for name in ("hosts", "resolv.conf", "passwd")}
    shutil.rmtree(own_rootfs / "etc")
    (own_rootfs / "etc").symlink_to("../../../../../../../../../etc-of-image")
    pod = make_pod({"a": shell("echo changed > /etc/hosts; ls /etc-of-image")}, own_rootfs, overlay=overlay)
    assert output_of(pod) == "hostname\nhosts\n"
    assert {name: Path("/etc", name).read_bytes() for name in sentinel} == sentinel
    assert not Path("/etc-of-image").exists()
    assert stat.S_ISDIR(pod.file("a", "/etc-of-image").stat().st_mode)
