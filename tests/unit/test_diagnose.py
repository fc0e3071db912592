"""minit.reaper.diagnose: why an exec failed, in rkt's words."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minit.base.processors import this_processor
from minit.reaper.diagnose import check_exec, diagnose_exec

MACHINE = int.from_bytes(Path("/proc/self/exe").read_bytes()[18:20], "little")
"""The number of this processor in an ELF file."""

FILES = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def executable(path: Path, content: bytes, mode: int = 0o755) -> str:
    """Write an executable file and return its path as a text."""
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def elf(
    interpreter: bytes | None = None, *, bits: int = 2, order: int = 1, version: int = 1, machine: int | None = MACHINE
) -> bytes:
    """Return a 64-bit ELF file of one program header, a PT_INTERP if there is an interpreter."""
    identification = b"\x7fELF" + bytes([bits, order, version]) + bytes(9)
    name = b"" if interpreter is None else interpreter + b"\0"
    kind = 1 if interpreter is None else 3
    header = struct.pack("<16sHHIQQQIHHHHHH", identification, 2, machine, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    entry = struct.pack("<IIQQQQQQ", kind, 4, 120, 0, 0, len(name), len(name), 1)
    return header + entry + name


def test_a_missing_file(tmp_path: Path) -> None:
    """The text is the one that rkt's own tests look for."""
    assert diagnose_exec("/foo-not-there") == 'Unable to open "/foo-not-there": No such file or directory'


def test_a_file_in_the_place_of_a_directory(tmp_path: Path) -> None:
    """Any other reason of open(2) is given as well."""
    path = executable(tmp_path / "file", b"") + "/x"
    assert diagnose_exec(path) == f'Unable to open "{path}": Not a directory'


def test_a_relative_path() -> None:
    """Only absolute paths mean something in an app."""
    assert diagnose_exec("bin/sh") == 'Path must be absolute: "bin/sh"'


@pytest.mark.parametrize("kind", ["directory", "fifo"])
def test_what_is_no_regular_file(tmp_path: Path, kind: str) -> None:
    """A directory cannot be executed, and looking at a fifo does not block."""
    path = tmp_path / kind
    path.mkdir() if kind == "directory" else os.mkfifo(path)
    assert diagnose_exec(str(path)) == f'"{path}" is not a regular file'


def test_a_file_that_nobody_may_execute(tmp_path: Path) -> None:
    """Without any execute bit not even root may."""
    path = executable(tmp_path / "app", b"#!/bin/sh\n", 0o644)
    assert diagnose_exec(path) == f'"{path}" is not executable'


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_a_file_that_the_apps_user_may_not_execute(tmp_path: Path) -> None:
    """The bits of others do not help the user that the app runs as."""
    path = executable(tmp_path / "app", b"#!/bin/sh\n", 0o744)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            # The test's directory is root's alone, the new root is not.
            os.chmod(tmp_path, 0o755)
            os.chroot(tmp_path)
            os.setresuid(65534, 65534, 65534)
            os.write(writer, diagnose_exec("/app").encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with open(reader, "rb") as text:
        assert text.read().decode() == '"/app" is not executable'
    assert diagnose_exec(path) != f'"{path}" is not executable'


@pytest.mark.parametrize("content", [b"", b"\0", b"hello", b"#", b"MZ\x90", b"\x7fEL"])
def test_an_unknown_type(tmp_path: Path, content: bytes) -> None:
    """Neither a script nor an ELF file."""
    assert diagnose_exec(executable(tmp_path / "app", content)) == "Unsupported file type"


# Scripts.


@pytest.mark.parametrize(
    ("line", "interpreter"),
    [
        (b"#!/no/sh\n", "/no/sh"),
        (b"#!/no/sh", "/no/sh"),
        (b"#! \t/no/sh -e -x\n", "/no/sh"),
        (b"#!/no/sh\t-e\n", "/no/sh"),
        (b"#!/no/sh\r\n", "/no/sh\r"),
        (b"#!/no/sh\0/x\n", "/no/sh"),
        (b"#!/no/\xff\n", "/no/\udcff"),
    ],
)
def test_a_missing_interpreter_of_a_script(tmp_path: Path, line: bytes, interpreter: str) -> None:
    """The interpreter is what the kernel takes for it, a carriage return included, and is looked at in turn."""
    path = executable(tmp_path / "app", line + b"exit\n")
    if not line.endswith(b"\n"):
        path = executable(tmp_path / "app", line)
    assert diagnose_exec(path) == f'Unable to open "{interpreter}": No such file or directory'


@pytest.mark.parametrize("line", [b"#!", b"#!\n", b"#! \t \n", b"#!\0\n"])
def test_a_script_without_an_interpreter(tmp_path: Path, line: bytes) -> None:
    """A line that names nothing is said to."""
    path = executable(tmp_path / "app", line)
    assert diagnose_exec(path) == f'Unable to determine interpreter for "{path}"'


def test_a_relative_interpreter(tmp_path: Path) -> None:
    """The kernel would look in the working directory; the diagnosis does not guess which that was."""
    assert diagnose_exec(executable(tmp_path / "app", b"#!sh\n")) == 'Path must be absolute: "sh"'


def test_a_long_first_line(tmp_path: Path) -> None:
    """A line that does not fit the kernel's buffer is too long."""
    assert diagnose_exec(executable(tmp_path / "app", b"#!" + b"/a" * 200)) == "Shebang line too long"
    path = executable(tmp_path / "app", b"#!/" + b"a" * 252 + b"\n")
    assert diagnose_exec(path) == f'Unable to open "/{"a" * 252}": No such file or directory'


def test_a_chain_of_scripts(tmp_path: Path) -> None:
    """The first broken link of a chain is the reason."""
    last = executable(tmp_path / "3", b"#!/no/interpreter\n")
    middle = executable(tmp_path / "2", b"#!" + last.encode() + b"\n")
    first = executable(tmp_path / "1", b"#!" + middle.encode() + b"\n")
    assert diagnose_exec(first) == 'Unable to open "/no/interpreter": No such file or directory'
    (tmp_path / "3").chmod(0o644)
    assert diagnose_exec(first) == f'"{last}" is not executable'


def test_a_script_that_is_its_own_interpreter(tmp_path: Path) -> None:
    """A circle ends."""
    path = tmp_path / "app"
    assert diagnose_exec(executable(path, b"#!%s\n" % bytes(path))) == "Excessive interpreter recursion, giving up"


# ELF files.


@pytest.mark.parametrize("name", ["/lib64/ld-missing.so.2", "/lib with spaces/ld linux.so.2", "/lib/ld-\udcff.so"])
def test_a_missing_interpreter_of_an_elf_file(tmp_path: Path, name: str) -> None:
    """The loader's whole name is given, spaces and odd bytes included."""
    path = executable(tmp_path / "app", elf(os.fsencode(name)))
    assert diagnose_exec(path) == f'Unable to open "{name}": No such file or directory'


def test_a_script_with_an_elf_interpreter_without_a_loader(tmp_path: Path) -> None:
    """The chain goes on from a script into its interpreter's own loader."""
    shell = executable(tmp_path / "sh", elf(b"/no/ld.so"))
    path = executable(tmp_path / "app", b"#!" + shell.encode() + b"\n")
    assert diagnose_exec(path) == 'Unable to open "/no/ld.so": No such file or directory'


def test_an_elf_file_for_another_processor(tmp_path: Path) -> None:
    """Processors are named as in images' labels; the loader of such a file is not looked at."""
    own = this_processor()
    for machine, name in ((62, "amd64"), (183, "aarch64"), (21, "ppc64le"), (243, "another processor")):
        path = executable(tmp_path / "app", elf(b"/no/ld.so", machine=machine))
        if name == own.appc:
            assert diagnose_exec(path) == 'Unable to open "/no/ld.so": No such file or directory'
        else:
            assert diagnose_exec(path) == f'"{path}" is for {name}, this machine is {own.appc}'


def test_a_static_elf_file(tmp_path: Path) -> None:
    """Without a program header for it there is no interpreter."""
    path = executable(tmp_path / "app", elf())
    assert diagnose_exec(path) == f'Unable to determine interpreter for "{path}"'


@pytest.mark.parametrize("options", [{"bits": 1}, {"bits": 0}, {"order": 2}])
def test_other_elf_formats(tmp_path: Path, options: dict[str, int]) -> None:
    """32-bit and big-endian files are not looked into."""
    assert diagnose_exec(executable(tmp_path / "app", elf(b"/x", **options))) == "Unsupported ELF format"


def test_another_elf_version(tmp_path: Path) -> None:
    """There is only version 1."""
    assert diagnose_exec(executable(tmp_path / "app", elf(version=7))) == "Unsupported ELF version: 7"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (63, "Unsupported ELF format"),
        (64, 'Unable to determine interpreter for "{}"'),
        (119, 'Unable to determine interpreter for "{}"'),
        (120, 'Path must be absolute: ""'),
        (124, 'Unable to open "/no/": No such file or directory'),
    ],
)
def test_a_truncated_elf_file(tmp_path: Path, size: int, text: str) -> None:
    """A file that ends too early has as much said about it as is there."""
    path = executable(tmp_path / "app", elf(b"/no/ld.so")[:size])
    assert diagnose_exec(path) == text.format(path)


@pytest.mark.parametrize("offset", [2**63 - 1, 2**63, 2**64 - 1])
def test_an_offset_out_of_this_world(tmp_path: Path, offset: int) -> None:
    """A table or a name at the end of the address space is as good as none."""
    content = bytearray(elf(b"/no/ld.so"))
    content[32:40] = offset.to_bytes(8, "little")
    path = executable(tmp_path / "app", bytes(content))
    assert diagnose_exec(path) == f'Unable to determine interpreter for "{path}"'
    content = bytearray(elf(b"/no/ld.so"))
    content[72:80] = offset.to_bytes(8, "little")
    assert diagnose_exec(executable(tmp_path / "app", bytes(content))) == 'Path must be absolute: ""'


CONTENT = st.one_of(
    st.binary(max_size=300),
    st.binary(max_size=60).map(lambda rest: b"#!" + rest),
    st.binary(min_size=57, max_size=400).map(lambda rest: b"\x7fELF\2\1\1" + rest),
    st.builds(
        lambda base, changes: bytes({**dict(enumerate(base)), **changes}[at] for at in range(len(base))),
        st.just(elf(b"/no/ld.so")),
        st.dictionaries(st.integers(0, 129), st.integers(0, 255), max_size=8),
    ),
)


@FILES
@given(CONTENT)
def test_any_content_gives_a_text(tmp_path: Path, content: bytes) -> None:
    """For any name of an executable the diagnosis is a text and never an error."""
    assert diagnose_exec(executable(tmp_path / "app", content))


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20))
def test_any_path_gives_a_text(name: str) -> None:
    """Nor does an odd path break it."""
    assert diagnose_exec(name)
    assert diagnose_exec(f"/{name}\udcff")


def test_what_is_not_the_files_fault(tmp_path: Path) -> None:
    """Too many arguments are no matter of the file, and the error's own text says so."""
    path = executable(tmp_path / "app", b"#!/bin/sh\n")
    assert diagnose_exec(path, errno.E2BIG) == f'Unable to execute "{path}": Argument list too long'


# Looking beforehand.


def errno_of_exec(path: str) -> int:
    """Return how an exec of a file fails, 0 if it does not."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.dup2(os.open("/dev/null", os.O_RDWR), 2)
            os.execve(path, [path], {})
        except OSError as error:
            os.write(writer, bytes([error.errno or 255]))
        finally:
            os._exit(1)
    os.close(writer)
    answer = os.read(reader, 1)
    os.close(reader)
    os.waitpid(pid, 0)
    return answer[0] if answer else 0


def errno_of_check(path: str) -> int:
    """Return the error that is foreseen, 0 for none; it names the program."""
    try:
        check_exec(path)
    except OSError as error:
        assert error.filename == path
        return error.errno or 255
    return 0


def test_what_is_missing_is_foreseen(tmp_path: Path) -> None:
    """An exec that fails because of a file fails with the error that was foreseen."""
    missing = b"#!" + bytes(tmp_path) + b"/missing\n"
    chain = executable(tmp_path / "chain", b"#! " + executable(tmp_path / "inner", missing).encode() + b" x\n")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path, number in (
        (str(tmp_path / "missing"), errno.ENOENT),
        (executable(tmp_path / "script", missing), errno.ENOENT),
        (chain, errno.ENOENT),
        (executable(tmp_path / "dynamic", elf(bytes(tmp_path) + b"/ld.so")), errno.ENOENT),
        (executable(tmp_path / "plain", b"#!/bin/sh\n", 0o644), errno.EACCES),
        (executable(tmp_path / "outer", b"#!" + bytes(tmp_path / "plain") + b"\n"), errno.EACCES),
        (str(tmp_path), errno.EACCES),
        (f"{tmp_path}/plain/x", errno.ENOTDIR),
        (str(loop), errno.ELOOP),
    ):
        assert errno_of_check(path) == errno_of_exec(path) == number, path


@pytest.mark.parametrize("content", [b"#!/bin/sh\nexit 3\n", Path("/bin/true").read_bytes()])
def test_what_can_be_executed_is_let_through(tmp_path: Path, content: bytes) -> None:
    """Scripts and programs, also those that nobody may read."""
    for mode in (0o755, 0o111):
        assert errno_of_check(executable(tmp_path / f"app-{mode:o}", content, mode)) == 0


@FILES
@given(content=st.one_of(st.binary(max_size=300), st.binary(max_size=40).map(lambda tail: b"#!" + tail)))
def test_nothing_is_foreseen_that_does_not_happen(tmp_path: Path, content: bytes) -> None:
    """For any file an exec that would work is not given up, and nothing but its errors is raised."""
    path = executable(tmp_path / "any", content)
    foreseen = errno_of_check(path)
    assert not foreseen or errno_of_exec(path)
