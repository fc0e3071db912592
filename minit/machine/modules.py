"""
Loading kernel modules: those that are named, and those for the devices there are, by MODALIAS.

The image has a table of what its modules say of themselves; nothing else is needed, neither modprobe nor its indexes.
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

# There already, or not for this machine, which is no fault of anybody's.
_HARMLESS = (errno.EEXIST, errno.ENODEV)


class Modules:
    """
    The modules of the image, each with its neighbours in the order of loading, and its patterns of MODALIAS.

    `options` are their parameters by their names, as the kernel takes them.
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
        """Tell whether any of them is for some device."""
        # As in pci:v00001AF4*; there are names of other kinds as well, such as fs-xfs.
        return any(":" in pattern for pattern, _ in self._aliases)

    def load(self, name: str) -> None:
        """Load a module with its neighbours; what fails is said, and is not tried again."""
        name = name.replace("-", "_")
        if name not in self._neighbours:
            if name not in self._done and not os.path.isdir(f"/sys/module/{name}"):
                complain_at_once(f"minit: module {name}: not in this image")
            self._done.add(name)
            return
        self._load(name)

    def load_for(self, modaliases: Iterable[str]) -> bool:
        """Load the modules for devices that have these MODALIASes; returns whether there was anything new."""
        found = [alias for alias in dict.fromkeys(modaliases) if alias not in self._seen]
        self._seen.update(found)
        names = [name for alias in found for name in self.matching(alias) if name not in self._done]
        for name in dict.fromkeys(names):
            self._load(name)
        return bool(names)

    def load_filesystem(self, fstype: str) -> None:
        """Load what a type of file systems needs; the kernel would call modprobe for that."""
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
    """Return the modules of this image, none if it has none or they are for another kernel, which is said."""
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
    """Return the parameters of modules on a kernel's command line, `i2c_stub.chip_addr=0x50` say, by their names."""
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
