"""Reading /proc/PID/mountinfo (proc(5))."""

from __future__ import annotations

import os
from collections.abc import Iterator

from minit.base.value import Value

# The kernel escapes exactly these characters, as three octal digits. The backslash comes last, against new escapes.
_ESCAPES = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\043", "#"), ("\\134", "\\"))


class Mount(Value):
    """One line of mountinfo; paths are unescaped."""

    mount_id: int
    parent_id: int
    root: str
    mount_point: str
    options: str
    tags: tuple[str, ...]
    fstype: str
    source: str
    super_options: str


def read_mountinfo(path: str = "/proc/self/mountinfo") -> list[Mount]:
    """Return the mounts in the kernel's order, in which a parent precedes its children unless moved."""
    return [*find_mounts("", path)]


def find_mounts(text: str, path: str = "/proc/self/mountinfo") -> Iterator[Mount]:
    """
    Yield the mounts with `text` in a path, a source, a type or an option, and perhaps others, in the kernel's order.

    A machine may have many thousands: lines without `text` are not parsed, and no line is read before it is needed.
    """
    for _, character in _ESCAPES:
        text = text.partition(character)[0]
    # Only a line feed ends a line: the kernel does not escape a carriage return in a path.
    with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
        for line in lines:
            if text in line:
                yield parse_line(line)


def is_on_shared_mount(path: str) -> bool:
    """Tell whether mounts below a path, links followed, reach peers of the path's mount (mount_namespaces(7))."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as lines:
            mount_id = next(int(line.partition(":")[2]) for line in lines if line.startswith("mnt_id:"))
    finally:
        os.close(fd)
    return any(
        mount.mount_id == mount_id and any(tag.startswith("shared:") for tag in mount.tags)
        for mount in find_mounts(str(mount_id))
    )


def parse_line(line: str) -> Mount:
    """Return the mount of one line; ValueError for a line of another form."""
    before, separator, after = line.rstrip("\n").partition(" - ")
    fields, tail = before.split(" "), after.split(" ")
    if not separator or len(fields) < 6 or len(tail) < 2:
        raise ValueError(f"not a mountinfo line: {line!r}")
    return Mount(
        mount_id=int(fields[0]),
        parent_id=int(fields[1]),
        root=_unescape(fields[3]),
        mount_point=_unescape(fields[4]),
        options=fields[5],
        tags=tuple(fields[6:]),
        fstype=tail[0],
        source=_unescape(tail[1]),
        super_options=tail[2] if len(tail) > 2 else "",
    )


def _unescape(text: str) -> str:
    for code, character in _ESCAPES if "\\" in text else ():
        text = text.replace(code, character)
    return text
