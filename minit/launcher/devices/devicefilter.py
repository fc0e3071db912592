"""
The device policy of a group of the v2 hierarchy: a BPF program that the kernel asks about every use of a device.

The kernel passes it `struct bpf_cgroup_dev_ctx` (linux/bpf.h), three 32-bit numbers: the access wanted in the upper
half of the first and the kind of device in the lower one, then major and minor. 1 means yes, 0 no.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

from minit.linux import syscalls
from minit.plan.root.devicevolumes import BLOCK, CHARACTER, DeviceRule

_NAME = "minit_devices"

# enum bpf_devcg_type_access and BPF_DEVCG_DEV_… of linux/bpf.h.
_ACCESS_BITS = {"m": 1, "r": 2, "w": 4}
_ALL_ACCESS = 7
_KINDS = {BLOCK: 1, CHARACTER: 2}

# struct bpf_insn: operation, registers (source in the upper half), offset, immediate value.
_INSTRUCTION = struct.Struct("<BBhi")
_LOAD_WORD = 0x61  # LDX | MEM | W
_AND = 0x54  # ALU | AND | K, as the next on 32 bits
_SHIFT_RIGHT = 0x74  # ALU | RSH | K
_COPY = 0xBC  # ALU | MOV | X
_SET = 0xB4  # ALU | MOV | K
_JUMP_UNLESS_EQUAL = 0x55  # JMP | JNE | K
_EXIT = 0x95  # JMP | EXIT

_RESULT, _CONTEXT, _KIND, _WANTED, _MAJOR, _MINOR, _SCRATCH = range(7)


def assemble_filter(rules: Iterable[DeviceRule]) -> bytes:
    """Return the program that allows what any single one of the rules allows, and nothing else."""
    code = [
        _instruction(_LOAD_WORD, _KIND, _CONTEXT, offset=0),
        _instruction(_COPY, _WANTED, _KIND),
        _instruction(_SHIFT_RIGHT, _WANTED, value=16),
        _instruction(_AND, _KIND, value=0xFFFF),
        _instruction(_LOAD_WORD, _MAJOR, _CONTEXT, offset=4),
        _instruction(_LOAD_WORD, _MINOR, _CONTEXT, offset=8),
    ]
    for rule in rules:
        code += _assemble_rule(rule)
    return b"".join([*code, *_answer(0)])


def set_filter(group: int, rules: Iterable[DeviceRule]) -> None:
    """
    Make `rules` the policy of the group whose directory is `group`, in the place of an earlier one, at no moment none.

    The policies of the groups above it hold too.
    """
    program = syscalls.bpf_prog_load(syscalls.BPF_PROG_TYPE_CGROUP_DEVICE, assemble_filter(rules), _NAME)
    try:
        # Without BPF_F_ALLOW_MULTI: whoever attaches again replaces the program, without having the old one.
        syscalls.bpf_prog_attach(group, program, syscalls.BPF_CGROUP_DEVICE)
    finally:
        os.close(program)


def _assemble_rule(rule: DeviceRule) -> list[bytes]:
    tests = [(_KIND, _KINDS[rule.kind]), (_MAJOR, rule.major)]
    if rule.minor is not None:
        tests.append((_MINOR, rule.minor))
    refused = _ALL_ACCESS & ~sum(_ACCESS_BITS[letter] for letter in rule.access)
    wanted = []
    if refused:
        wanted = [_instruction(_COPY, _SCRATCH, _WANTED), _instruction(_AND, _SCRATCH, value=refused)]
        tests.append((_SCRATCH, 0))
    allow = _answer(1)
    code: list[bytes] = []
    size = len(tests) + len(wanted) + len(allow)
    for register, value in tests:
        if register == _SCRATCH:
            code += wanted
        # To the next rule, counted from the instruction after this one.
        code.append(_instruction(_JUMP_UNLESS_EQUAL, register, offset=size - len(code) - 1, value=value))
    return code + allow


def _answer(value: int) -> list[bytes]:
    return [_instruction(_SET, _RESULT, value=value), _instruction(_EXIT)]


def _instruction(operation: int, target: int = 0, source: int = 0, *, offset: int = 0, value: int = 0) -> bytes:
    return _INSTRUCTION.pack(operation, source << 4 | target, offset, value)
