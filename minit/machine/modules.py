"""
Loading kernel modules: by name, and by MODALIAS for the devices there are.

Apart from the devices: the command of a machine, which has no pyudev, loads the module for the firmware's variables.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

from minit.base.errors import MinitError, describe
from minit.base.jsontext import parse
from minit.linux import syscalls
from minit.linux.stdio import complain_at_once
from minit.podfiles import paths

# Loaded already, or not for this machine: no failure.
_HARMLESS = (errno.EEXIST, errno.ENODEV)


class Modules:
    """
    The modules of the image, each with its neighbours in the order of loading, and its patterns of MODALIAS; from the
    image's own table, without modprobe and its indexes.

    `options` are the modules' parameters by name, in the kernel's form.
    """

    def __init__(
        self,
        table: Mapping[str, Any],
        directory: str = paths.MACHINE_MODULES,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._options = options
        self.release = str(table.get("release", ""))
        self._directory = directory
        self._neighbours: dict[str, tuple[Sequence[str], Sequence[str]]] = {}
        self._aliases: list[tuple[str, str]] = []
        self._done: set[str] = set()
        self._seen: set[str] = set()
        for module in table.get("modules", ()):
            self._neighbours[module["name"]] = module["before"], module["after"]
            self._aliases += [(pattern, module["name"]) for pattern in module["aliases"]]

    @property
    def are_for_devices(self) -> bool:
        """Tell whether any module is for a device."""
        # As in pci:v00001AF4*; there are names of other kinds as well, such as fs-xfs.
        return any(":" in pattern for pattern, _ in self._aliases)

    def load(self, name: str) -> None:
        """Load a module with its neighbours; a failure is reported, and not tried again."""
        name = name.replace("-", "_")
        if name not in self._neighbours:
            if name not in self._done and not os.path.isdir(f"/sys/module/{name}"):
                complain_at_once(f"minit: module {name}: not in this image")
            self._done.add(name)
            return
        self._load(name)

    def load_for(self, modaliases: Iterable[str]) -> bool:
        """Load the modules for devices with these MODALIASes; return whether any was new."""
        found = [alias for alias in dict.fromkeys(modaliases) if alias not in self._seen]
        self._seen.update(found)
        names = [name for alias in found for name in self.matching(alias) if name not in self._done]
        for name in dict.fromkeys(names):
            self._load(name)
        return bool(names)

    def load_filesystem(self, fstype: str) -> None:
        """Load the module for a type of file systems, for which the kernel would call modprobe."""
        self.load_for([f"fs-{fstype}"])

    def matching(self, modalias: str) -> list[str]:
        """Return the modules for a device, in the order of the table."""
        return list(dict.fromkeys(name for pattern, name in self._aliases if fnmatchcase(modalias, pattern)))

    def _load(self, name: str) -> None:
        if name in self._done:
            return
        self._done.add(name)
        before, after = self._neighbours[name]
        for other in before:
            self._load(other)
        self._insert(name)
        for other in after:
            self._load(other)

    def _insert(self, name: str) -> None:
        try:
            fd = os.open(f"{self._directory}/{name}.ko", os.O_RDONLY | os.O_CLOEXEC)
            try:
                syscalls.finit_module(fd, self._options.get(name, ""))
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno not in _HARMLESS:
                complain_at_once(f"minit: module {name}: {describe(error)}")


def read_modules() -> Modules:
    """Return the modules of this image, none without a table, or, with a message, for another kernel."""
    try:
        with open(paths.MACHINE_MODULE_TABLE, "rb") as file:
            table = parse(file.read(), paths.MACHINE_MODULE_TABLE)
    except FileNotFoundError:
        return Modules({})
    except (MinitError, OSError) as error:
        complain_at_once(f"minit: {describe(error)}")
        return Modules({})
    assert isinstance(table, dict)  # the image's builder wrote it
    modules, kernel = Modules(table, options=_read_options()), os.uname().release
    if modules.release != kernel:
        complain_at_once(f"minit: the modules are those of kernel {modules.release}, this is {kernel}: none is loaded")
        return Modules({})
    return modules


def module_options(command_line: str) -> dict[str, str]:
    """Return the parameters of modules on a kernel's command line by name, for example `i2c_stub.chip_addr=0x50`."""
    options: dict[str, list[str]] = {}
    for word in command_line.split():
        name, dot, parameter = word.partition(".")
        if dot and parameter and "=" not in name:
            options.setdefault(name.replace("-", "_"), []).append(parameter)
    return {name: " ".join(parameters) for name, parameters in options.items()}


def _read_options() -> dict[str, str]:
    try:
        with open(paths.KERNEL_COMMAND_LINE, encoding="utf-8", errors="surrogateescape") as file:
            return module_options(file.read())
    except OSError:
        return {}
