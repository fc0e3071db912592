"""
The processors of images, each by the names of uname(2), appc and OCI, and the oldest kernel of minit.

Pure, but for `this_processor`.
"""

from __future__ import annotations

import os

from minit.base.value import Value

MINIMUM_KERNEL = (5, 12)  # mount_setattr; openat2, clone3, pidfd and close_range are older


class Processor(Value):
    """
    A kind of processors.

    `name` is OCI's, with the variant where appc tells variants apart, `machines` are uname(2)'s names, `elf_machine` is
    elf(5)'s number, None if unknown. `variants` are OCI's variants that the processor runs, best first, and `older` are
    appc's names of other processors whose programs run, too.
    """

    name: str
    appc: str
    machines: tuple[str, ...]
    elf_machine: int | None = None
    variants: tuple[str, ...] = ("",)
    older: tuple[str, ...] = ()

    @property
    def architecture(self) -> str:
        """OCI's name without a variant."""
        return self.name.partition("/")[0]

    def runs(self, appc: str | None) -> bool:
        """Tell whether programs of an architecture run, by appc's name; None is an unknown architecture."""
        return appc in (self.appc, *self.older)


# OCI image-index.md, "platform"; appc spec/aci.md, "labels". Some machines lack what v2 of amd64 and more need.
PROCESSORS = (
    Processor(name="amd64", appc="amd64", machines=("x86_64",), elf_machine=62, variants=("", "v1"), older=("i386",)),
    Processor(name="386", appc="i386", machines=("i386", "i586", "i686"), elf_machine=3),
    Processor(
        name="arm64",
        appc="aarch64",
        machines=("aarch64",),
        elf_machine=183,
        variants=("v8", ""),
        older=("armv7l", "armv6l"),
    ),
    Processor(
        name="arm/v7",
        appc="armv7l",
        machines=("armv7l", "armv8l"),
        elf_machine=40,
        variants=("v7", "v6", "v5", ""),
        older=("armv6l",),
    ),
    Processor(name="arm/v6", appc="armv6l", machines=("armv6l",), elf_machine=40, variants=("v6", "v5", "")),
    Processor(name="ppc64le", appc="ppc64le", machines=("ppc64le",), elf_machine=21),
    Processor(name="ppc64", appc="ppc64", machines=("ppc64",), elf_machine=21),
    Processor(name="s390x", appc="s390x", machines=("s390x",), elf_machine=22),
)


def processor_of_machine(machine: str) -> Processor:
    """Return the processor of a machine by its name in uname(2); an unknown processor has that name everywhere."""
    unknown = Processor(name=machine, appc=machine, machines=(machine,))
    return next((processor for processor in PROCESSORS if machine in processor.machines), unknown)


def processor_of_appc(name: str) -> Processor:
    """Return the processor by its name in appc; an unknown processor has that name everywhere."""
    unknown = Processor(name=name, appc=name, machines=())
    return next((processor for processor in PROCESSORS if processor.appc == name), unknown)


def processor_named(name: str) -> Processor:
    """Return the processor by its name in OCI; KeyError for an unknown name."""
    return {processor.name: processor for processor in PROCESSORS}[name]


def this_processor() -> Processor:
    """Return the processor of this machine."""
    return processor_of_machine(os.uname().machine)


def parse_kernel_release(release: str) -> tuple[int, int]:
    """Return (major, minor) of a release such as `6.1.0-18-amd64`."""
    major, _, rest = release.partition(".")
    minor = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    return int(major), int(minor)
