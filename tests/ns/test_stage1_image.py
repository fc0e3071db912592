"""The stage1 image: what is in it, and that it works from anywhere with nothing of the machine it runs on."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import minit
from minit.image.dump.program import obstacle
from minit.image.libraries import LibrarySearch
from minit.image.pythonmodules import entrypoint_names
from minit.image.stage1 import ENTRYPOINT_ANNOTATIONS
from minit.manifest.image import parse_image_manifest
from minit.manifest.networkconfig import parse_network_config
from tests.support.unpack import unpack

STAGE1_FLY_SIZE_BYTES = 9_900_000
CALLED = tuple(f"minit/{name}/" for name in ("launcher", "supervisor", "iottymux", "plan", "network"))
NOT_CALLED = ("argparse.py:", "inspect.py:", "typing.py:", "click/")
needs_dump = pytest.mark.skipif(obstacle() is not None, reason="this Python cannot be dumped")
FLAGS = ("-I", "-S", "-B", "-X", "utf8", "-c")
PROJECT = Path(minit.__file__).parent.parent
DUMP = "usr/lib/minit/bin/minit"

BUILD = """\
import sys
from pathlib import Path
from minit.image.stage1 import build_stage1
from minit.base.progress import silent
build_stage1(Path(sys.argv[1]), silent, plain=sys.argv[2:] == ["plain"])
"""

IMPORT_ALL = """\
import sys
for name in sys.argv[1:]:
    __import__(name)
"""

# trio opens these when it starts; a stand-in that was too empty would show here.
RUN_TRIO = """\
import structlog, trio
async def main():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 0)
        with trio.move_on_after(5):
            left, right = trio.socket.socketpair()
            await left.send(b"x")
            assert await right.recv(1) == b"x"
    structlog.get_logger().info("works", n=1)
trio.run(main)
"""

# Run in a network namespace with a link of a kind that the image's pyroute2 has no class for.
RUN_NETLINK = """\
from minit.network.addresses import parse_address, parse_interface, parse_subnet
from minit.network.netlink.bridges import add_bridge
from minit.network.netlink.links import Links
from minit.network.netlink.messages import NewRoute
links = Links()
add_bridge(links, "br0", 1400)
bridge = links.get("br0")
links.set_up(bridge)
address = parse_interface("10.0.0.1/24")
links.add_address(bridge, address)
links.add_route(bridge, NewRoute(destination=parse_subnet("10.1.0.0/16"), gateway=parse_address("10.0.0.9")))
assert address in links.addresses(bridge)
routes = [str(route.destination) for route in links.routes()]
assert [route for route in routes if "." in route] == ["10.0.0.0/24", "10.1.0.0/16"]
print(bridge.kind, bridge.mtu, links.get("tun0").kind)
"""


# Loads libudev by its name, which must not be the host's.
RUN_PYUDEV = """\
from minit.devices import DeviceLookup
lookup = DeviceLookup()
print(lookup.find("/dev/null")[0].subsystem)
with open("/proc/self/maps") as file:
    print(*{line.split(maxsplit=5)[5].strip() for line in file if "/" in line}, sep="\\n")
"""

# elf(5).
PT_LOAD, PF_X, PF_W = 1, 1, 2

PRINT_PROCESS = '#!/bin/busybox sh\nfor word in "$0" "$@"; do echo "<$word>"; done\n/bin/busybox env\n'


@pytest.fixture
def root(stage1_image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The image's rootfs, unpacked in a place of its own."""
    yield from unpacked(stage1_image, tmp_path_factory)


@pytest.fixture
def plain_root(plain_stage1_image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """That of the image whose interpreter is not dumped."""
    yield from unpacked(plain_stage1_image, tmp_path_factory)


@pytest.fixture(params=[pytest.param("dumped", marks=needs_dump), "plain"])
def each_root(request: pytest.FixtureRequest) -> Path:
    """Either of them."""
    root: Path = request.getfixturevalue("root" if request.param == "dumped" else "plain_root")
    assert (root / DUMP).exists() == (request.param == "dumped")
    return root


def unpacked(image: Path, places: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the rootfs of an image in a new directory."""
    directory = places.mktemp("a place with spaces")
    unpack(image, directory)
    yield directory / "rootfs"
    shutil.rmtree(directory)


def python(root: Path) -> list[str]:
    """Return the command that the launcher runs, up to the program text."""
    if (root / DUMP).exists():
        return [str(root / DUMP), "-c"]
    interpreter = str(root / "usr/lib/minit/bin/python3")
    loader = str(root / "usr/lib/minit/ld.so")
    return [loader, "--inhibit-cache", "--argv0", interpreter, interpreter, *FLAGS]


def module_names(root: Path) -> list[str]:
    """Return every module in the image."""
    if (root / DUMP).exists():
        code = "import sys; print(*sys.modules)"
        return subprocess.run([*python(root), code], capture_output=True, text=True, check=True).stdout.split()
    library = next((root / "usr/lib/minit/lib").glob("python3.*"))
    names = set()
    for path in library.rglob("*"):
        if path.suffix in (".pyc", ".so"):
            parts = path.relative_to(library).parts
            parts = parts[1:] if parts[0] == "lib-dynload" else parts
            parts = (*parts[:-1], parts[-1].partition(".")[0])
            names.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return sorted(names)


def tree_hash(root: Path) -> str:
    """Return a hash of everything about a tree that a write could change."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        digest.update(f"{path} {status.st_mode} {status.st_mtime_ns} {status.st_ctime_ns}\n".encode())
        if path.is_file() and not path.is_symlink():
            digest.update(path.read_bytes())
    return digest.hexdigest()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["dumped", "plain"])
def test_two_builds_are_the_same_bytes(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    """
    Neither the place of sources or output, umask, locale, time, hash seed nor numbers of processes get into it, nor the
    machine's name and the values of variables.
    """
    project, temporary = tmp_path / "sources-of-the-builder", tmp_path / "scratch-of-the-builder"
    for package in ("minit", "entrypoints"):
        shutil.copytree(PROJECT / package, project / package)
    temporary.mkdir()
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "TMPDIR": str(temporary), "HOME": str(tmp_path)}
    environment["SECRET"] = "value-of-a-variable-of-the-builder"
    elsewhere = ["unshare", "--uts", "--pid", "--fork", "--mount-proc", "sh", "-c"]
    # How long the name is decides where in the dump some objects lie.
    elsewhere += [f'hostname {"b" * len(os.uname().nodename)}; exec "$@"', "sh"]
    command = [*elsewhere, sys.executable, "-c", BUILD, "of-the-builder.aci", kind]
    subprocess.run(command, cwd=project, umask=0o077, env=environment, check=True)
    other = request.getfixturevalue("stage1_image" if kind == "dumped" else "plain_stage1_image")
    assert (project / "of-the-builder.aci").read_bytes() == other.read_bytes()


@needs_dump
def test_nothing_of_the_building_machine_is_dumped(root: Path) -> None:
    """Neither the system's version, nor a directory or an argument of the build is in the program."""
    program = (root / DUMP).read_bytes()
    assert b"entrypoints._dumped" in program
    assert os.uname().release.encode() not in program
    assert str(PROJECT).encode() not in program


@needs_dump
def test_a_dump_has_no_page_that_is_written_and_executed(root: Path) -> None:
    """No segment is both, and no mapping is while the program runs."""
    program = (root / DUMP).read_bytes()
    offset, size, count = (int.from_bytes(program[at : at + 2], "little") for at in (32, 54, 56))
    headers = [program[at : at + size] for at in range(offset, offset + count * size, size)]
    flags = [header[4] for header in headers if header[0] == PT_LOAD]
    assert len(flags) >= 4
    assert [flag for flag in flags if flag & (PF_W | PF_X) == PF_W | PF_X] == []
    code = "import ctypes; print(open('/proc/self/maps').read())"
    maps = subprocess.run([*python(root), code], capture_output=True, text=True, check=True).stdout
    assert "r-xp" in maps and "rw-p" in maps
    assert re.findall(r"^\S+ .wx", maps, re.M) == []


@needs_dump
def test_a_dump_has_fixed_addresses_only_for_its_own_memory(root: Path) -> None:
    """Stack, heap, mapped memory and the kernel's code are somewhere else at each start."""
    code = """\
import ctypes, mmap, re
maps = open("/proc/self/maps").read()
anonymous = mmap.mmap(-1, 4096)
print(*(re.search(rf"^(\\w+)-.* \\[{name}\\]$", maps, re.M)[1] for name in ("heap", "stack", "vdso")))
print(f"{ctypes.addressof(ctypes.c_char.from_buffer(anonymous)):x}")
"""
    starts = [subprocess.run([*python(root), code], capture_output=True, text=True, check=True) for _ in range(3)]
    addresses = [done.stdout.split() for done in starts]
    assert all(len(set(column)) == 3 for column in zip(*addresses, strict=True)), addresses


def test_keys_that_collide_cost_little(root: Path) -> None:
    """The seed gives keys that want one place of a dictionary; a manifest of them is read as any other."""
    code = """\
import time
from minit.base.jsontext import dump, parse
names = (f"key {number}" for number in range(10**9))
colliding, others = [], []
while len(colliding) < 2000:
    name = next(names)
    if hash(name) & 1023 == 0:
        colliding.append(name)
    elif len(others) < 2000:
        others.append(name)
def processor_seconds(keys):
    data = dump(dict.fromkeys(keys, 1))
    start = time.process_time()
    for _ in range(20):
        parse(data, "manifest")
    return time.process_time() - start
print(processor_seconds(colliding) / processor_seconds(others))
"""
    done = subprocess.run([*python(root), code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 20


@needs_dump
def test_a_dump_draws_its_random_numbers_itself(root: Path) -> None:
    """Generators of modules are seeded at each start; hashes of strings are the image's."""
    code = "import random, trio; print(random.random(), trio._core._run._r.random(), hash('key'))"
    starts = [subprocess.run([*python(root), code], capture_output=True, text=True, check=True) for _ in range(2)]
    (first, scheduler, hashed), (other_first, other_scheduler, other_hashed) = (done.stdout.split() for done in starts)
    assert first != other_first
    assert scheduler != other_scheduler
    assert hashed == other_hashed


@needs_dump
def test_a_dump_makes_system_calls_itself(root: Path) -> None:
    """No ctypes stands between, in which another interpreter may lack functions."""
    code = "import sys; print([name in sys.modules for name in ('_syscalls', 'minit.linux.ctypescalls')])"
    assert subprocess.run([*python(root), code], capture_output=True, check=True).stdout == b"[True, False]\n"


@needs_dump
def test_functions_that_may_be_called_lie_together(root: Path) -> None:
    """Those of minit and of trio's loop do, in a third of the memory that functions lie in, with few others between."""
    code = (
        "import gc, types; gc.unfreeze()\n"
        "for thing in gc.get_objects():\n"
        "    if isinstance(thing, types.FunctionType) and id(thing) < 1 << 32:\n"
        "        print(f'{thing.__code__.co_filename}:{thing.__code__.co_qualname}', id(thing), sep='\\t')\n"
    )
    done = subprocess.run([*python(root), code], capture_output=True, text=True, check=True)
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    places = {name: int(address) for name, address in lines}
    called = sorted(place for name, place in places.items() if name.startswith(CALLED))
    others = sorted(place for name, place in places.items() if name.startswith(NOT_CALLED))
    assert len(called) > 2000 and len(others) > 300
    # But for a few: what eval() makes goes by one name, whoever calls it.
    few = len(called) // 50
    assert called[-1 - few] - called[few] < (others[-1] - others[0]) / 3
    trio_run = places["trio/_core/_run.py:unrolled_run"]
    assert called[0] < trio_run < called[-1 - few]
    # Modules with sets of objects allocate in another order where the objects have other addresses, as in each dump.
    assert len([place for place in others if called[few] < place < called[-1 - few]]) < len(others) / 2


@needs_dump
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_words_of_an_entrypoint_lead_nowhere_back(root: Path, tmp_path: Path) -> None:
    """Only the program text of another version's process has a way back: an entrypoint has the words of its caller."""
    trace = tmp_path / "trace"
    words = [str(root / DUMP), "stop", "one", "two", "--back", "0", "program"]
    subprocess.run(["strace", "-e", "trace=setitimer", "-o", trace, *words], capture_output=True, check=False)
    assert "exited with" in trace.read_text() and "setitimer" not in trace.read_text()


@needs_dump
def test_a_dump_takes_what_its_caller_left(root: Path) -> None:
    """Signals that are ignored stay so, closed streams are none, and a traceback and the exit code are Python's."""
    code = "import signal, sys; print(signal.getsignal(1), signal.getsignal(2), sys.stdin, sys.argv); 1 / 0"
    script = 'trap "" HUP; exec "$@" <&-'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *python(root), code, "a", "b c"], capture_output=True, text=True, check=False
    )
    assert done.stdout == "1 0 None ['-c', 'a', 'b c']\n"
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert done.returncode == 1
    for number, expected in (("0", 0), ("3", 3), ("'x'", 1)):
        done = subprocess.run([*python(root), f"import sys; sys.exit({number})"], capture_output=True, text=True)
        assert done.returncode == expected


def test_the_image_is_smaller_than_stage1_fly(stage1_image: Path) -> None:
    """The compressed image is smaller than the smallest of rkt's own."""
    assert stage1_image.stat().st_size < STAGE1_FLY_SIZE_BYTES


def test_the_manifest_names_every_entrypoint(stage1_image: Path) -> None:
    """Each annotation leads to an executable file; all flags of interface version 6 may be used; three have none."""
    with tarfile.open(stage1_image) as image:
        data = image.extractfile("manifest")
        assert data is not None
        manifest = parse_image_manifest(data.read(), "manifest")
        assert image.getnames()[:2] == ["manifest", "rootfs"]
        assert {*entrypoint_names()} - {*ENTRYPOINT_ANNOTATIONS} == {"cni", "init", "minit"}
        for annotation in ENTRYPOINT_ANNOTATIONS.values():
            path = manifest.annotation(annotation)
            assert path is not None
            assert image.getmember(f"rootfs{path}").mode == 0o755
    assert manifest.annotation("coreos.com/rkt/stage1/interface-version") == "6"
    assert manifest.label("version") == minit.__version__
    assert manifest.label("os") == "linux"
    assert manifest.app is None


def test_the_rootfs_is_what_the_contract_asks_for(stage1_image: Path) -> None:
    """The directories stage0 writes into are there, all is root's and without a date, and no file in /rkt."""
    with tarfile.open(stage1_image) as image:
        entries = {entry.name.removeprefix("rootfs/"): entry for entry in image.getmembers()}
        hosts = image.extractfile("rootfs/etc/hosts-fallback")
        assert hosts is not None
        assert b"\n127.0.0.1 localhost localhost.domain localhost4 localhost4.localdomain4\n" in hosts.read()
    for directory in ("rkt/status", "rkt/env", "rkt/iottymux", "opt/stage2", "etc", "proc", "sys", "dev", "tmp"):
        assert entries[directory].isdir()
    assert entries["rkt/minit"].mode == 0o700
    assert entries["etc/mtab"].linkname == "../proc/self/mounts"
    assert not [name for name, entry in entries.items() if name.startswith("rkt/") and not entry.isdir()]
    assert {(entry.uid, entry.gid, entry.uname, entry.mtime) for entry in entries.values()} == {(0, 0, "", 0)}


def test_the_networks_of_the_image_are_rkts(root: Path) -> None:
    """The networks `default` and `default-restricted` have rkt's addresses, and only the first masquerades."""
    directory = root / "etc/rkt/net.d"
    networks = [parse_network_config(path.read_bytes(), path.name, "net.d") for path in sorted(directory.iterdir())]
    assert [(network.file_name, network.name, network.cni_version, network.ip_masq) for network in networks] == [
        ("99-default-restricted.conf", "default-restricted", "0.1.0", False),
        ("99-default.conf", "default", "0.1.0", True),
    ]
    assert [network.plugins[0].type for network in networks] == ["ptp", "ptp"]
    assert [json.loads(network.text)["ipam"] for network in networks] == [
        {"type": "host-local", "subnet": "172.31.0.0/16"},
        {"type": "host-local", "subnet": "172.16.28.0/24", "routes": [{"dst": "0.0.0.0/0"}]},
    ]


def test_an_entrypoint_is_found_by_its_own_path(root: Path, tmp_path: Path) -> None:
    """The launcher goes by the path of its file, whatever the working directory, its argv[0] or its environment."""
    done = subprocess.run(
        ["nonsense", "--no-such-flag"],
        executable=root / "entrypoints/run",
        cwd=tmp_path,
        env={"PYTHONHOME": "/nowhere", "LD_PRELOAD": "/nowhere.so", "LC_ALL": "xx_YY"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[0].endswith("flag provided but not defined: -no-such-flag")


def test_arguments_and_environment_reach_the_entrypoint(plain_root: Path) -> None:
    """Arguments come through unchanged, the loader's variables do not, and the locale is always C."""
    shutil.copy(plain_root / "entrypoints/run", plain_root / "entrypoints/probe")
    probe = next((plain_root / "usr/lib/minit/lib").glob("python3.*")) / "entrypoints/probe.py"
    probe.write_text("import os, sys\ndef main(): print(sys.argv[1:], dict(os.environ))\n")
    arguments = ["", "a b", "--c=ä"]
    done = subprocess.run(
        [plain_root / "entrypoints/probe", *arguments],
        env={"A": "1", "LD_LIBRARY_PATH": "/x", "LC_ALL": "en_US", "Z": ""},
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"{arguments} {{'A': '1', 'Z': '', 'LC_ALL': 'C'}}\n"


def start_in_stub(
    root: Path, place: Path, name: str, program: str, *arguments: str
) -> tuple[list[str], dict[str, str]]:
    """Return words and variables that `program` gets of an image's launcher, as the first program of a machine."""
    for directory in ("proc", "entrypoints", "bin", "usr/lib/minit/bin"):
        (place / directory).mkdir(parents=True, exist_ok=True)
    shutil.copy(root / "entrypoints/init", place / "entrypoints" / name)
    shutil.copy("/usr/bin/busybox", place / "bin")
    (place / program).write_text(PRINT_PROCESS)
    (place / program).chmod(0o755)
    command = ["unshare", "--mount", "--pid", "--fork", f"--root={place}", f"/entrypoints/{name}", *arguments]
    environment = {"TERM": "linux", "PYTHONPATH": "/elsewhere", "PYTHONHASHSEED": "1", "LD_PRELOAD": "/x"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    words = [line[1:-1] for line in lines if line.startswith("<")]
    return words, dict(line.split("=", 1) for line in lines if not line.startswith("<"))


@needs_dump
def test_a_dump_is_started_with_the_name_of_the_entrypoint(root: Path, tmp_path: Path) -> None:
    """It gets the path of the read-only mount, its entrypoint and the arguments, and nothing for an interpreter."""
    words, variables = start_in_stub(root, tmp_path, "app_add", DUMP, "", "a b")
    assert words == [f"/proc/self/fd/3/{DUMP}", "app_add", "", "a b"]
    assert (variables["TERM"], variables["LC_ALL"]) == ("linux", "C")
    assert "LD_PRELOAD" not in variables


def test_the_first_program_of_a_machine_gets_its_seed(plain_root: Path, tmp_path: Path) -> None:
    """The interpreter need not wait until the kernel has random numbers: it is given a seed, each time another."""
    seeds = []
    for _ in range(2):
        words, variables = start_in_stub(plain_root, tmp_path, "init", "usr/lib/minit/ld.so")
        assert " ".join(words).count("-Ps -S -B") == 1
        # By this name, since a loader may not know its program's.
        assert "--library-path /proc/self/fd/3/usr/lib/minit/lib " in " ".join(words)
        seeds.append(int(variables.pop("PYTHONHASHSEED")))
        assert (variables["TERM"], variables["LC_ALL"]) == ("linux", "C")
        assert "PYTHONPATH" not in variables
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("run", r"minit: cannot run .*/usr/lib/minit/(bin/minit|ld\.so): errno 2\n"),
        ("run;x", r"minit: not the name of an entrypoint: run;x\n"),
    ],
)
def test_a_launcher_out_of_place_says_so(root: Path, tmp_path: Path, name: str, message: str) -> None:
    """A launcher that is not in a stage1 image gives one line and rkt's exit code for a broken stage1."""
    (tmp_path / "entrypoints").mkdir()
    shutil.copy(root / "entrypoints/run", tmp_path / "entrypoints" / name)
    done = subprocess.run([tmp_path / "entrypoints" / name], capture_output=True, text=True)
    assert done.returncode == 254
    assert re.fullmatch(message, done.stderr)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_nothing_of_the_host_is_opened(each_root: Path, tmp_path: Path) -> None:
    """Neither starting nor importing everything opens a library, locale or Python file outside the image."""
    root = each_root
    preloaded = LibrarySearch().find("libm.so.6", Path(sys.executable).resolve())
    assert preloaded is not None
    hostile = {
        "LANG": "en_US.UTF-8",
        "LC_ALL": "C.UTF-8",
        "LD_LIBRARY_PATH": "/lib/x86_64-linux-gnu:/usr/lib:/lib64",
        "LD_PRELOAD": str(preloaded.path),
        "PYTHONPATH": str(PROJECT),
    }
    traced = ["strace", "-f", "-e", "trace=?open,openat,openat2,execve,?access,faccessat", "-o"]
    run = [str(root / "entrypoints/run"), "--no-such-flag"]
    environment = [f"{name}={value}" for name, value in hostile.items()]
    subprocess.run([*traced, tmp_path / "start", "env", *environment, *run], capture_output=True)
    imports = [*python(root), IMPORT_ALL, *module_names(root)]
    subprocess.run(
        [*traced, tmp_path / "import", *imports], check=True, capture_output=True, env={"LC_ALL": "C", **os.environ}
    )
    # strace starts `env`, which is the host's: what counts begins with the launcher.
    start = (tmp_path / "start").read_text().partition(f'execve("{run[0]}"')[2]
    imported = (tmp_path / "import").read_text()
    opened = re.findall(r'^\d+ +(?:execve\(|open\(|openat2?\([^,]+, )"([^"]+)".* = \d+$', start + imported, re.M)
    assert len(opened) >= (2 if (root / DUMP).exists() else 100)
    # The time zone is data, read by the C library in every process that asks for the time.
    allowed = (f"{root}/", "/proc/", "/sys/", "/dev/", "/etc/localtime")
    assert not [path for path in opened if not path.startswith(allowed)]
    assert imported.count("execve(") == 1
    assert "/etc/ld.so.preload" not in start + imported


def test_an_error_in_minit(each_root: Path) -> None:
    """An unexpected error ends an entrypoint with a traceback and the code of failures."""
    script = "from entrypoints._main import run_entrypoint; run_entrypoint('stage1', '', lambda words: 1 // 0)"
    done = subprocess.run([*python(each_root), script], capture_output=True, text=True, check=False)
    assert done.returncode == 254
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.splitlines()[-1].startswith("ZeroDivisionError: ")


def test_trio_and_structlog_work_on_the_stand_ins(each_root: Path) -> None:
    """The stand-ins for ssl, asyncio, idna and ctypes.util are enough for a running trio program that logs."""
    done = subprocess.run([*python(each_root), RUN_TRIO], capture_output=True, text=True, env={"LC_ALL": "C"})
    assert done.returncode == 0, done.stderr
    assert "works" in done.stdout


def test_netlink_works_on_the_stand_ins(each_root: Path) -> None:
    """The stand-ins for parts of pyroute2 are enough to make links, addresses and routes and to read them."""
    script = 'ip tuntap add tun0 mode tun; exec "$@"'
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", script, "sh", *python(each_root), RUN_NETLINK],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "bridge 1400 tun\n"


def test_pyudev_works_on_the_stand_ins(each_root: Path) -> None:
    """It finds the image's own libudev, and runs no program to do so."""
    done = subprocess.run([*python(each_root), RUN_PYUDEV], capture_output=True, text=True, env={"LC_ALL": "C"})
    assert done.returncode == 0, done.stderr
    subsystem, *mapped = done.stdout.splitlines()
    assert subsystem == "mem"
    # The library of a dump is a part of it.
    own = DUMP if (each_root / DUMP).exists() else "usr/lib/minit/lib/libudev.so.1"
    assert f"{each_root}/{own}" in mapped
    assert [path for path in mapped if not path.startswith((f"{each_root}/", "/memfd:"))] == []


def test_nothing_is_written_below_the_tree(root: Path) -> None:
    """Starting entrypoints and importing everything, as root, changes no file of the tree."""
    before = tree_hash(root)
    for name in entrypoint_names():
        subprocess.run([root / "entrypoints" / name, "--no-such-flag"], capture_output=True)
    subprocess.run([*python(root), IMPORT_ALL, *module_names(root)], check=True, env={"LC_ALL": "C"})
    assert tree_hash(root) == before
