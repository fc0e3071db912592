"""
Why an exec failed, in rkt's words.

Runs in the failed app's own process, inside its root and with its privileges, so it can neither see nor reach more
than the app; it imports nothing. The texts are those of rkt's stage1 diagnostic, which its users match on.
"""

from __future__ import annotations

import errno
import os
import stat

# What a look at the file explains; anything else, too many arguments say, is not its fault.
_FAULTS_OF_FILES = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.ELOOP, errno.ELIBBAD)
_MAXIMUM_DEPTH = 8
_SHEBANG_LIMIT = 256  # BINPRM_BUF_SIZE of Linux 5.1 and later
_PT_INTERP = 3


def diagnose_exec(path: str, number: int = errno.ENOENT) -> str:
    """Return a line, without a prefix, that says why execve(2) of `path` failed with the errno `number`."""
    if number not in _FAULTS_OF_FILES:
        return f'Unable to execute "{path}": {os.strerror(number)}'
    return _diagnose(path, 0)


def _diagnose(path: str, depth: int) -> str:
    if not path.startswith("/"):
        return f'Path must be absolute: "{path}"'
    if depth > _MAXIMUM_DEPTH:
        return "Excessive interpreter recursion, giving up"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        # An unreadable binary may well be executable; only what is missing is certain.
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
    line, newline, _ = head[2:].partition(b"\n")
    if not newline and len(head) == _SHEBANG_LIMIT:
        return "Shebang line too long"
    # Only blanks separate words and only NUL ends them, for the kernel too: a carriage return belongs to the name.
    words = line.split(b"\0")[0].replace(b"\t", b" ").strip(b" ").split(b" ")
    if not words[0]:
        return f'Unable to determine interpreter for "{path}"'
    return _diagnose(os.fsdecode(words[0]), depth + 1)


def _diagnose_elf(path: str, fd: int, head: bytes, depth: int) -> str:
    if len(head) < 64 or head[4] != 2 or head[5] != 1:
        return "Unsupported ELF format"
    if head[6] != 1:
        return f"Unsupported ELF version: {head[6]}"

    def number(at: int, size: int, data: bytes = head) -> int:
        return int.from_bytes(data[at : at + size], "little")

    table, entry_size, entries = number(32, 8), number(54, 2), number(56, 2)
    for index in range(min(entries, 128)):
        entry = _read_at(fd, 56, table + index * entry_size)
        if len(entry) == 56 and number(0, 4, entry) == _PT_INTERP:
            name = _read_at(fd, min(number(32, 8, entry), 4096), number(8, 8, entry)).split(b"\0")[0]
            return _diagnose(os.fsdecode(name), depth + 1)
    return f'Unable to determine interpreter for "{path}"'


def _read_at(fd: int, size_bytes: int, offset: int) -> bytes:
    """Return what the file holds there; nothing at an offset that only a damaged file would name."""
    try:
        return os.pread(fd, size_bytes, offset)
    except (OSError, OverflowError):
        return b""
