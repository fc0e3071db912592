"""An interpreter of the few BPF instructions in a device filter, written from the kernel's instruction-set.rst."""

from __future__ import annotations

import struct

_MASK32, _MASK64 = (1 << 32) - 1, (1 << 64) - 1


def run_device_filter(program: bytes, access: int, kind: int, major: int, minor: int) -> int:
    """Return what a program answers for `struct bpf_cgroup_dev_ctx`; AssertionError for any other instruction."""
    context = struct.pack("<III", access << 16 | kind, major, minor)
    registers: list[int | None] = [None] * 10
    registers[1] = 0  # the context's address
    instructions = list(struct.iter_unpack("<BBhi", program))
    at = 0
    while True:
        operation, both, offset, value = instructions[at]
        target, source = both & 15, both >> 4
        at += 1
        if operation == 0x95:
            result = registers[0]
            assert result is not None
            return result
        if operation == 0x61:
            assert registers[source] == 0, "a load from anything but the context"
            assert 0 <= offset <= len(context) - 4
            [registers[target]] = struct.unpack_from("<I", context, offset)
        elif operation == 0xBC:
            registers[target] = _read(registers, source) & _MASK32
        elif operation == 0xB4:
            registers[target] = value & _MASK32
        elif operation == 0x54:
            registers[target] = _read(registers, target) & value & _MASK32
        elif operation == 0x74:
            registers[target] = (_read(registers, target) & _MASK32) >> value
        elif operation == 0x55:
            # The immediate value is extended with its sign.
            assert offset > 0, "a jump back"
            at += offset if _read(registers, target) != value & _MASK64 else 0
        else:
            raise AssertionError(f"operation {operation:#x}")


def _read(registers: list[int | None], number: int) -> int:
    value = registers[number]
    assert value is not None, f"register {number} is read before it is set"
    return value
