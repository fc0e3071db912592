"""minit.network.configs: which configuration files count, and what is said about them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from minit.base.errors import NetworkError
from minit.network import configs
from minit.network.configs import load_networks
from minit.podfiles import networkfiles

BUILT_IN = Path("stage1/rootfs/etc/rkt/net.d")


@pytest.fixture(autouse=True)
def pod_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the image's configurations; the vendor's are below it instead of /usr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(networkfiles, "VENDOR", "vendor/net.d")
    for module in (networkfiles, configs):
        monkeypatch.setattr(module, "CNI_DIRECTORY", "cni/net.d")
    for directory in (BUILT_IN, Path("vendor/net.d"), Path("local/net.d")):
        directory.mkdir(parents=True)
    return tmp_path


def write(directory: str | Path, file_name: str, name: str, **fields: object) -> None:
    """Write the configuration of a network."""
    (Path(directory) / file_name).write_text(json.dumps({"name": name, "type": "ptp", **fields}))


def load(*wanted: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Return where each network comes from, by name, and what is said about it."""
    networks, lines = load_networks("local", wanted)
    return sorted((network.name, f"{network.directory}/{network.file_name}") for network in networks), lines


def refusal(*wanted: str) -> str:
    """Return the message of a refusal."""
    with pytest.raises(NetworkError) as caught:
        load(*wanted)
    message = str(caught.value)
    assert message.startswith("failed to setup network: ")
    return message.removeprefix("failed to setup network: ")


def test_the_directory_for_all_runtimes() -> None:
    """It is for networks that are nowhere else, its broken files harm nobody, and `all` means none of them."""
    assert load("k8s") == ([], [])
    Path("cni/net.d").mkdir(parents=True)
    write("local/net.d", "10.conf", "own")
    write("cni/net.d", "10.conf", "own")
    write("cni/net.d", "20.json", "k8s")
    write("cni/net.d", "30.conf", "k8s")
    Path("cni/net.d/05.conf").write_text("{")
    assert load("own", "all") == ([("own", "local/net.d/10.conf")], [])
    found, lines = load("k8s", "own")
    assert found == [("k8s", "cni/net.d/20.json"), ("own", "local/net.d/10.conf")]
    assert [line.partition(": ")[0] for line in lines] == ["ignoring cni/net.d/05.conf"]


def test_three_directories() -> None:
    """Networks come from the image, the vendor and the administrator."""
    write(BUILT_IN, "99-default.conf", "default")
    write("vendor/net.d", "50.conf", "vendor")
    write("local/net.d", "10.conflist", "own", plugins=[{"type": "bridge"}])
    assert load("all") == (
        [
            ("default", "stage1/rootfs/etc/rkt/net.d/99-default.conf"),
            ("own", "local/net.d/10.conflist"),
            ("vendor", "vendor/net.d/50.conf"),
        ],
        [],
    )


def test_no_directories(pod_directory: Path) -> None:
    """None of the directories needs to be there."""
    for directory in (BUILT_IN, Path("vendor/net.d"), Path("local/net.d")):
        directory.rmdir()
    assert load("all") == ([], [])


def test_a_later_directory_overrides() -> None:
    """The same name in a later directory wins, whatever the file is called, and that is said."""
    write(BUILT_IN, "99-default.conf", "default")
    write("vendor/net.d", "a.conf", "default")
    write("local/net.d", "b.conf", "default")
    assert load("default") == (
        [("default", "local/net.d/b.conf")],
        [
            'overriding "default" network with one from vendor/net.d',
            'overriding "default" network with one from local/net.d',
        ],
    )


def test_the_first_file_of_a_directory_wins() -> None:
    """Within a directory the first in the order of names counts, and the others are named."""
    write("local/net.d", "20.conf", "lan")
    write("local/net.d", "10.conf", "lan")
    assert load("lan") == ([("lan", "local/net.d/10.conf")], ['"lan" network already defined, ignoring 20.conf'])


def test_nothing_is_said_about_networks_nobody_asked_for() -> None:
    """A network that is overridden or defined twice does not matter unless it is used."""
    for file_name in ("10.conf", "20.conf"):
        write("local/net.d", file_name, "lan")
        write("vendor/net.d", file_name, "lan")
    write("local/net.d", "30.conf", "own")
    assert load("own:K=V") == ([("own", "local/net.d/30.conf")], [])


def test_other_files_are_not_read() -> None:
    """Only names that end in .conf or .conflist count, and no directories."""
    Path("local/net.d/README").write_text("not JSON")
    Path("local/net.d/10.conf.bak").write_text("not JSON")
    Path("local/net.d/sub.conf").mkdir()
    assert load("all") == ([], [])


def test_links_are_followed() -> None:
    """An administrator may keep the files somewhere else."""
    write(".", "elsewhere", "lan")
    Path("local/net.d/10.conf").symlink_to(Path("elsewhere").absolute())
    assert load("lan") == ([("lan", "local/net.d/10.conf")], [])


def test_what_is_no_file_is_left_alone() -> None:
    """A fifo or a device is not opened, which could wait or set something off."""
    os.mkfifo("local/net.d/10.conf")
    Path("local/net.d/20.conf").symlink_to("/dev/null")
    assert load("all") == (
        [],
        ["ignoring local/net.d/10.conf: not a regular file", "ignoring local/net.d/20.conf: not a regular file"],
    )


@pytest.mark.parametrize("text", ["{", "[]", '{"name": 5}', '{"name": "a", "name": "b"}', "\xff"])
def test_a_broken_file_ends_it(text: str) -> None:
    """A .conf of which not even the name can be told fails every pod, as in rkt: it might be the one meant."""
    write("local/net.d", "10.conf", "lan")
    Path("local/net.d/20.conf").write_bytes(text.encode("latin-1"))
    assert refusal("lan").startswith("local/net.d/20.conf: ")


def test_a_broken_file_of_another_network_does_no_harm() -> None:
    """An error in a file matters only if its network is wanted."""
    write("local/net.d", "10.conf", "lan")
    write("local/net.d", "20.conf", "broken", cniVersion="7.0.0")
    write("local/net.d", "30.conf", "../x")
    Path("local/net.d/40.conf").write_text("{}")
    Path("local/net.d/50.conf").write_text('{"name": "lame"}')
    assert load("lan") == ([("lan", "local/net.d/10.conf")], [])
    assert 'local/net.d/20.conf: cniVersion: expected "0.1.0" or' in refusal("broken")
    assert refusal("lame").startswith("local/net.d/50.conf: type: expected the name of a plugin")
    assert refusal("all").startswith("local/net.d/20.conf: ")


def test_a_broken_list_ends_nothing() -> None:
    """rkt reads no lists, so one that cannot be read is only named, unless all networks are asked for."""
    write("local/net.d", "10.conf", "lan")
    Path("local/net.d/20.conflist").write_text("{")
    networks, [line] = load("lan")
    assert networks == [("lan", "local/net.d/10.conf")]
    assert line.startswith("ignoring local/net.d/20.conflist: ")
    assert refusal("all").startswith("local/net.d/20.conflist: ")


def test_a_file_that_is_too_large() -> None:
    """A file is read up to a bound."""
    Path("local/net.d/10.conf").write_bytes(b" " * (1 << 20) + b"{}")
    assert refusal("lan") == "local/net.d/10.conf: larger than 1048576 bytes"


def test_what_cannot_be_read_is_named() -> None:
    """A dangling link and a directory that is none fail with the system's reason."""
    Path("local/net.d/10.conf").symlink_to("nothing")
    assert refusal("lan") == "local/net.d/10.conf: no such file or directory"
    Path("local/net.d/10.conf").unlink()
    Path("local/net.d").rmdir()
    Path("local/net.d").write_text("")
    assert refusal("lan") == "local/net.d: not a directory"
