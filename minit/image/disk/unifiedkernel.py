"""
A kernel, its initial file system and its command line as one program of a firmware: a unified kernel image.

The program is the stub of Debian's systemd-boot-efi, which starts the kernel with the other two; they are sections that
are added to it (systemd-stub(7), and Microsoft's "PE Format" of files and headers). objcopy(1) can add sections to
programs of the architectures that it was built for only. It stands apart from disk.py, its only importer, as a format
of its own that needs no file.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from minit.base.errors import ImageError

_SIGNATURE = b"PE\0\0"
_POINTER_TO_SIGNATURE = 0x3C
_FILE_HEADER_BYTES = 24  # with the signature
_SECTION = struct.Struct("<8sIIIIIIHHI")
# Of the optional header, which 32-bit and 64-bit programs have in common.
_INITIALIZED_BYTES, _SECTION_ALIGNMENT, _FILE_ALIGNMENT, _IMAGE_BYTES, _HEADERS_BYTES, _CHECKSUM = 8, 32, 36, 56, 60, 64
_INITIALIZED_DATA_READABLE = 0x40000040
_PAGE_BYTES = 4096
_NAME_BYTES = 8


def unified_kernel(stub: bytes, sections: Mapping[str, bytes], source: str) -> bytes:
    """Return the stub with these sections added; ImageError names `source`, its file, if it is no such program."""
    try:
        return _with_sections(stub, sections)
    except (struct.error, ValueError) as error:
        raise ImageError(f"{source}: not a stub for a firmware (an .efi.stub)") from error


def _with_sections(stub: bytes, sections: Mapping[str, bytes]) -> bytes:
    (header,) = struct.unpack_from("<I", stub, _POINTER_TO_SIGNATURE)
    if stub[:2] != b"MZ" or stub[header : header + 4] != _SIGNATURE:
        raise ValueError
    (count,) = struct.unpack_from("<H", stub, header + 6)
    (optional_bytes,) = struct.unpack_from("<H", stub, header + 20)
    optional = header + _FILE_HEADER_BYTES
    table = optional + optional_bytes
    alignment, file_alignment = (_read(stub, optional + field) for field in (_SECTION_ALIGNMENT, _FILE_ALIGNMENT))
    if not alignment or not file_alignment:
        raise ValueError
    present = [_SECTION.unpack_from(stub, table + number * _SECTION.size) for number in range(count)]
    address = max(section[2] + section[1] for section in present)
    if table + (count + len(sections)) * _SECTION.size > _read(stub, optional + _HEADERS_BYTES):
        raise ValueError
    program = bytearray(stub)
    added = 0
    for number, (name, data) in enumerate(sections.items(), count):
        program += bytes(-len(program) % file_alignment)
        # The kernel may be started where it is.
        address = _align(address, max(alignment, _PAGE_BYTES))
        size = _align(len(data), file_alignment)
        encoded = name.encode().ljust(_NAME_BYTES, b"\0")
        entry = (encoded, len(data), address, size, len(program), 0, 0, 0, 0, _INITIALIZED_DATA_READABLE)
        _SECTION.pack_into(program, table + number * _SECTION.size, *entry)
        program += data.ljust(size, b"\0")
        address += len(data)
        added += size
    struct.pack_into("<H", program, header + 6, count + len(sections))
    initialized = _read(stub, optional + _INITIALIZED_BYTES) + added
    struct.pack_into("<I", program, optional + _INITIALIZED_BYTES, initialized)
    struct.pack_into("<I", program, optional + _IMAGE_BYTES, _align(address, alignment))
    # Firmware looks at that of drivers alone; 0 is none.
    struct.pack_into("<I", program, optional + _CHECKSUM, 0)
    return bytes(program)


def _read(stub: bytes, offset: int) -> int:
    (value,) = struct.unpack_from("<I", stub, offset)
    assert isinstance(value, int)
    return value


def _align(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
