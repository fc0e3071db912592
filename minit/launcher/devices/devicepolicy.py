"""
Telling the kernel which devices the processes of an app's control group may use.

By the `devices` controller of v1 where that is mounted (Documentation/admin-guide/cgroup-v1/devices.rst), else by a BPF
program on the v2 group, which the kernel asks about every use of a device. The kernel passes the program `struct
bpf_cgroup_dev_ctx` (linux/bpf.h), three 32-bit numbers: the wanted access in the upper half of the first number and the
kind of device in the lower half, then major and minor. The answer 1 means yes, 0 no.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable, Sequence

from minit.base.errors import LaunchError, describe
from minit.base.value import Value
from minit.launcher.cgroups import Hierarchy, app_group
from minit.linux import syscalls
from minit.plan.root.devicevolumes import BLOCK, CHARACTER, DeviceRule, rule_changes

_CONTROLLER = "devices"
# bpf(2) is missing, or the kind of program.
_NOT_BUILT_IN = (errno.ENOSYS, errno.EINVAL)
_GONE = (errno.ENOENT, errno.ENODEV)

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


class DeviceGroup(Value):
    """The directory of the group of an app's device policy, of the v1 controller or of v2."""

    directory: str
    is_v2: bool


class NoDeviceControl(LaunchError):
    """This kernel cannot keep an app from using devices."""


def device_group(hierarchies: Sequence[Hierarchy], subcgroup: str, app: str) -> DeviceGroup | None:
    """Return the group that decides about an app's devices; None without such a hierarchy."""
    for hierarchy in sorted(hierarchies, key=lambda hierarchy: hierarchy.is_v2):
        if _CONTROLLER in hierarchy.controllers or hierarchy.is_v2:
            return DeviceGroup(directory=app_group(hierarchy, subcgroup, app), is_v2=hierarchy.is_v2)
    return None


def apply_policies(
    hierarchies: Sequence[Hierarchy], subcgroup: str, policies: Iterable[tuple[str, Sequence[DeviceRule] | None]]
) -> list[str]:
    """
    Restrict the group of each app, still without processes, to the devices of the rules; return the warnings to show.

    Without rules an app may use every device. LaunchError names the app and the failed device.
    """
    unrestricted = []
    for app, rules in policies:
        if rules is None:
            continue
        group = device_group(hierarchies, subcgroup, app)
        try:
            if group is None:
                raise NoDeviceControl("no hierarchy has the devices controller, and cgroup v2 is not mounted")
            set_policy(group, rules)
        except NoDeviceControl as error:
            unrestricted.append(f'warning: app "{app}" can use every device it can make: {error}')
        except (LaunchError, OSError) as error:
            # Nobody asked for a start without a policy.
            hint = "--insecure-options=paths does without"
            raise LaunchError(f'app "{app}": {describe(error)} ({hint})') from error
    return unrestricted


def set_policy(group: DeviceGroup, rules: Sequence[DeviceRule]) -> None:
    """Allow a group the devices of the rules and nothing else; NoDeviceControl if this kernel cannot."""
    if group.is_v2:
        _set_filter(group, rules)
        return
    _write(group, "devices.deny", ["a"])
    _write(group, "devices.allow", [rule.describe() for rule in rules])


def change_policy(group: DeviceGroup, old: Sequence[DeviceRule], new: Sequence[DeviceRule]) -> None:
    """Change the rules of a group, whose app may be running; nothing for a group gone with the pod."""
    try:
        if group.is_v2:
            _set_filter(group, new)
            return
        denied, allowed = rule_changes(old, new)
        _write(group, "devices.deny", [rule.describe() for rule in denied])
        _write(group, "devices.allow", [rule.describe() for rule in allowed])
    except OSError as error:
        if error.errno not in _GONE:
            raise


def _set_filter(group: DeviceGroup, rules: Sequence[DeviceRule]) -> None:
    directory = os.open(group.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        set_filter(directory, rules)
    except OSError as error:
        if error.errno in _NOT_BUILT_IN:
            raise NoDeviceControl("this kernel has no BPF programs for the devices of a control group") from error
        raise OSError(error.errno, error.strerror, group.directory) from error
    finally:
        os.close(directory)


def _write(group: DeviceGroup, name: str, rules: Sequence[str]) -> None:
    fd = os.open(f"{group.directory}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        for rule in rules:
            try:
                os.write(fd, rule.encode())
            except OSError as error:
                raise OSError(error.errno, error.strerror, f"{group.directory}/{name}: {rule}") from error
    finally:
        os.close(fd)


def assemble_filter(rules: Iterable[DeviceRule]) -> bytes:
    """Return the program that allows a use if any single rule does, and nothing else."""
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
    Make `rules` the policy of the group with the directory `group`, in the place of an earlier one, at no moment none.

    The policies of the groups above hold too.
    """
    program = syscalls.bpf_prog_load(syscalls.BPF_PROG_TYPE_CGROUP_DEVICE, assemble_filter(rules), _NAME)
    try:
        # Without BPF_F_ALLOW_MULTI: a later attachment replaces the program, without the old one at hand.
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
        # To the next rule, counted from the next instruction.
        code.append(_instruction(_JUMP_UNLESS_EQUAL, register, offset=size - len(code) - 1, value=value))
    return code + allow


def _answer(value: int) -> list[bytes]:
    return [_instruction(_SET, _RESULT, value=value), _instruction(_EXIT)]


def _instruction(operation: int, target: int = 0, source: int = 0, *, offset: int = 0, value: int = 0) -> bytes:
    return _INSTRUCTION.pack(operation, source << 4 | target, offset, value)
