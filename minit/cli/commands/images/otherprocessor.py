"""What commands that make images for machines do when these have another processor: --arch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from minit.base.errors import ImageError, PodError, describe
from minit.base.processors import processor_named, processor_of_appc
from minit.base.progress import Progress
from minit.image.foreign import PROCESSORS, ForeignProcessor, build_foreign_stage1, fetch_machine, foreign_stage1
from minit.image.kernelmodules import KernelModules
from minit.image.stage1 import appc_architecture
from minit.pods.ownprogram import PROGRAMS
from minit.stage0.images.storedimage import StoredImage

MACHINES = PROGRAMS / "machines"
"""Below it are the machines that build stage1 images, each in the directory of its processor, and these images."""

# What elf(5) calls e_machine.
_MACHINE = slice(18, 20)


def other_processor(arch: str | None) -> ForeignProcessor | None:
    """Return the processor of --arch, None for this machine's; ImageError for one that nothing is built for here."""
    if arch is None or processor_named(arch).appc == appc_architecture():
        return None
    if arch not in PROCESSORS:
        raise ImageError(f"--arch: on {os.uname().machine} nothing can be built for {arch}: build it on such a machine")
    return PROCESSORS[arch]


def stage1_for(processor: ForeignProcessor, progress: Progress) -> tuple[Path, str | None]:
    """Return minit's own stage1 image for a processor, and why its interpreter is not dumped if it should be."""
    with _machine_of(processor) as directory:
        return foreign_stage1(processor, directory, _first_use(progress))


def kernel_for(processor: ForeignProcessor, progress: Progress) -> Path:
    """Return the unpacked package of Debian's kernel for a processor."""
    with _machine_of(processor) as directory:
        return fetch_machine(processor, directory, _first_use(progress))


def build_for(processor: ForeignProcessor, output: Path, progress: Progress, *, plain: bool) -> str | None:
    """Write minit's own stage1 image for a processor to a file; returns the same reason."""
    with _machine_of(processor) as directory:
        return build_foreign_stage1(processor, directory, output, progress, plain=plain)


def check_processors(stage1: StoredImage, apps: Iterable[StoredImage], arch: str | None) -> None:
    """Raise PodError unless a machine of the architecture, which is else that of its stage1 image, runs all of them."""
    machine = stage1.manifest.label("arch") or ""
    wanted = processor_of_appc(machine) if arch is None else processor_named(arch)
    if machine != wanted.appc:
        raise PodError(f'stage1 image "{stage1.name}" is for {machine or "no processor"}, the machine is {wanted.appc}')
    for app in apps:
        own = app.manifest.label("arch")
        if not wanted.runs(own):
            told = f'image "{app.name}" is for {own}, the machine is {wanted.appc}'
            raise PodError(f"{told}: prepare the pod with --arch={wanted.name}, or build for another one with --arch")


def check_modules(modules: KernelModules, stage1: StoredImage) -> None:
    """Raise PodError for a kernel module that is for another processor than the stage1 image."""
    machine = processor_of_appc(stage1.manifest.label("arch") or "")
    for module in modules.modules:
        if int.from_bytes(module.data[_MACHINE], "little") != machine.elf_machine:
            raise PodError(f"kernel module {module.name} is for another processor, the machine is {machine.appc}")


def _first_use(progress: Progress) -> Progress:
    return lambda step, done, total: progress(f"for another processor (first use): {step}", done, total)


@contextmanager
def _machine_of(processor: ForeignProcessor) -> Iterator[Path]:
    """Give the directory of what builds for a processor; ImageError if nothing can be kept there."""
    try:
        yield MACHINES / processor.name
    except OSError as error:
        raise ImageError(f"cannot make a machine of {processor.name} in {MACHINES}: {describe(error)}") from error
