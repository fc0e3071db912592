"""Makes ELF files that have nothing but what a loader reads first."""

from __future__ import annotations

import struct
from collections.abc import Sequence

X86_64, AARCH64 = 62, 183


def elf_bytes(
    *,
    needed: Sequence[str] = (),
    soname: str | None = None,
    interpreter: str | None = None,
    runpath: str = "",
    rpath: str = "",
    wide: bool = True,
    order: str = "<",
    machine: int = X86_64,
) -> bytes:
    """Return a file with these dynamic entries; `order` is struct's sign for the byte order."""
    strings = bytearray(b"\0")

    def place(text: str) -> int:
        offset = len(strings)
        strings.extend(text.encode() + b"\0")
        return offset

    entries = [(1, place(name)) for name in needed]
    entries += [(tag, place(text)) for tag, text in ((14, soname), (15, rpath), (29, runpath)) if text]
    header_size, segment_size, entry_format = (64, 56, "qQ") if wide else (52, 32, "iI")
    segment_count = 3 if interpreter is not None else 2
    interpreter_at = header_size + segment_size * segment_count
    interpreter_bytes = b"" if interpreter is None else interpreter.encode() + b"\0"
    strings_at = interpreter_at + len(interpreter_bytes)
    dynamic_at = strings_at + len(strings)
    # Addresses differ from offsets, as in real files.
    base = 0x10000
    entries += [(5, base + strings_at), (10, len(strings)), (0, 0)]
    dynamic = b"".join(struct.pack(order + entry_format, *entry) for entry in entries)

    def segment(kind: int, offset: int, size: int) -> bytes:
        address = base + offset
        if wide:
            return struct.pack(order + "IIQQQQQQ", kind, 4, offset, address, address, size, size, 1)
        return struct.pack(order + "IIIIIIII", kind, offset, address, address, size, size, 4, 1)

    segments = segment(1, 0, dynamic_at + len(dynamic)) + segment(2, dynamic_at, len(dynamic))
    if interpreter is not None:
        segments += segment(3, interpreter_at, len(interpreter_bytes))
    identification = b"\x7fELF" + bytes((2 if wide else 1, 1 if order == "<" else 2, 1)) + bytes(9)
    word = "Q" if wide else "I"
    header = identification + struct.pack(
        f"{order}HHI{word}{word}{word}IHHHHHH",
        *(3, machine, 1),
        *(0, header_size, 0),
        *(0, header_size, segment_size, segment_count, 0, 0, 0),
    )
    return header + segments + interpreter_bytes + bytes(strings) + dynamic


def module_bytes(*information: str, machine: int = X86_64) -> bytes:
    """Return a kernel module, a relocatable ELF file, with nothing in it but a section .modinfo."""
    text = b"".join(pair.encode() + b"\0" for pair in information)
    names = b"\0.modinfo\0.shstrtab\0"
    start = 64
    headers = [
        bytes(64),
        struct.pack("<IIQQQQIIQQ", 1, 1, 0, 0, start, len(text), 0, 0, 1, 0),
        struct.pack("<IIQQQQIIQQ", 10, 3, 0, 0, start + len(text), len(names), 0, 0, 1, 0),
    ]
    place = start + len(text) + len(names)
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 1, machine, 1, 0, 0, place, 0, 64, 0, 0, 64, len(headers), 2)
    return head + text + names + b"".join(headers)
