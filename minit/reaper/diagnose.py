"""
The reason why an exec failed, or will fail, in rkt's words.

Runs in the failed app's own process, inside the app's root and with the app's privileges, so the diagnosis sees and
reaches no more than the app; nothing is imported. The texts are from rkt's stage1 diagnostic, for users who match.
"""

from __future__ import annotations

import errno
import os
import stat

from minit.base.processors import PROCESSORS, this_processor

# Errors that a look at the file explains; other errors, of too many arguments say, are not the file's fault.
_FAULTS_OF_FILES = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.ELOOP, errno.ELIBBAD)
_MAXIMUM_DEPTH = 8
_KERNEL_DEPTH = 5  # of interpreters of interpreters, fs/exec.c
_SHEBANG_LIMIT = 256  # BINPRM_BUF_SIZE of Linux 5.1 and later
_PT_INTERP = 3
# Read before the start of an app, whose filter may forbid the call.
_PROCESSOR = this_processor()


def diagnose_exec(path: str, number: int = errno.ENOENT) -> str:
    """Return a line, without a prefix, that says why execve(2) of `path` failed with the errno `number`."""
    if number not in _FAULTS_OF_FILES:
        return f'Unable to execute "{path}": {os.strerror(number)}'
    return _diagnose(path, 0)


def check_exec(path: str) -> None:
    """
    Raise the OSError with which execve(2) of `path` will fail because the file or its interpreter is missing.

    For a process that can report nothing after the attempt. An unreadable file passes.
    """
    file = path
    for _ in range(_KERNEL_DEPTH):
        try:
            regular = stat.S_ISREG(os.stat(file).st_mode)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
        if not regular or not os.access(file, os.X_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)
        interpreter = _find_interpreter(file)
        if not interpreter:
            return
        file = interpreter


def _find_interpreter(path: str) -> str | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        head = _read_at(fd, _SHEBANG_LIMIT, 0)
        if head.startswith(b"#!"):
            return _interpreter_of_script(head)
        return _interpreter_of_elf(fd, head) if _is_known_elf(head) else None
    finally:
        os.close(fd)


def _diagnose(path: str, depth: int) -> str:
    if not path.startswith("/"):
        return f'Path must be absolute: "{path}"'
    if depth > _MAXIMUM_DEPTH:
        return "Excessive interpreter recursion, giving up"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        # An unreadable binary may well be executable; only missing files are certain.
        return f'Unable to open "{path}": {error.strerror}'
    try:
        information = os.fstat(fd)
        if not stat.S_ISREG(information.st_mode):
            return f'"{path}" is not a regular file'
        if not os.access(path, os.X_OK):
            return f'"{path}" is not executable'
        head = _read_at(fd, _SHEBANG_LIMIT, 0)
        if head.startswith(b"#!"):
            return _diagnose_script(path, head, depth)
        if head.startswith(b"\x7fELF"):
            return _diagnose_elf(path, fd, head, depth)
        return "Unsupported file type"
    finally:
        os.close(fd)


def _diagnose_script(path: str, head: bytes, depth: int) -> str:
    if b"\n" not in head and len(head) == _SHEBANG_LIMIT:
        return "Shebang line too long"
    interpreter = _interpreter_of_script(head)
    if not interpreter:
        return f'Unable to determine interpreter for "{path}"'
    return _diagnose(interpreter, depth + 1)


def _diagnose_elf(path: str, fd: int, head: bytes, depth: int) -> str:
    if not _is_known_elf(head):
        return "Unsupported ELF format"
    if head[6] != 1:
        return f"Unsupported ELF version: {head[6]}"
    machine = int.from_bytes(head[18:20], "little")
    if machine != _PROCESSOR.elf_machine:
        other = next((one.appc for one in PROCESSORS if one.elf_machine == machine), "another processor")
        return f'"{path}" is for {other}, this machine is {_PROCESSOR.appc}'
    interpreter = _interpreter_of_elf(fd, head)
    if interpreter is None:
        return f'Unable to determine interpreter for "{path}"'
    return _diagnose(interpreter, depth + 1)


def _interpreter_of_script(head: bytes) -> str:
    """Return the interpreter in the first line of a script, possibly empty."""
    line = head[2:].partition(b"\n")[0]
    # As in the kernel, only blanks separate words, and only NUL ends them: a carriage return belongs to the name.
    words = line.split(b"\0")[0].replace(b"\t", b" ").strip(b" ").split(b" ")
    return os.fsdecode(words[0])


def _is_known_elf(head: bytes) -> bool:
    return head.startswith(b"\x7fELF") and len(head) >= 64 and head[4] == 2 and head[5] == 1


def _interpreter_of_elf(fd: int, head: bytes) -> str | None:
    """Return the loader that a 64-bit program names, None for a static one."""

    def number(at: int, size: int, data: bytes = head) -> int:
        return int.from_bytes(data[at : at + size], "little")

    table, entry_size, entries = number(32, 8), number(54, 2), number(56, 2)
    for index in range(min(entries, 128)):
        entry = _read_at(fd, 56, table + index * entry_size)
        if len(entry) == 56 and number(0, 4, entry) == _PT_INTERP:
            return os.fsdecode(_read_at(fd, min(number(32, 8, entry), 4096), number(8, 8, entry)).split(b"\0")[0])
    return None


def _read_at(fd: int, size_bytes: int, offset: int) -> bytes:
    """Return bytes of the file; nothing at an offset that only a damaged file would have."""
    try:
        return os.pread(fd, size_bytes, offset)
    except (OSError, OverflowError):
        return b""
