"""The commands that bring images about, name or send them (fetch, tag, push, stage1 build), and version."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

import minit
from minit.base.errors import ImageError, PodError, describe
from minit.base.processors import Processor, processor_named, processor_of_appc
from minit.base.progress import Progress
from minit.cli.flags.sharedoptions import arch_option, image_arch_option, pull_policy_option, quiet_option
from minit.cli.grammar import MinitCommand, MinitGroup
from minit.cli.invocation import Invocation
from minit.cli.text.progressdisplay import show_progress
from minit.image.foreign import PROCESSORS, ForeignProcessor, build_foreign_stage1, fetch_machine, foreign_stage1
from minit.image.kernelmodules import KernelModules
from minit.image.stage1 import appc_architecture, build_stage1
from minit.manifest.image import APPC_VERSION
from minit.podfiles.boundedfile import read_given
from minit.podfiles.usersdirectory import program_directory
from minit.pods import images as service
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import PullPolicy, StoredImage

_AUTHFILE_LIMIT_BYTES = 1 << 20
_SHORT_ID = len("sha512-") + 32

"""Below it are the machines that build stage1 images, each in the directory of its processor, and these images."""

# What elf(5) calls e_machine.
_MACHINE = slice(18, 20)


_authfile_option = click.option(
    "--authfile",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Credentials for registries, containers-auth.json(5); none if it is empty.  [default: skopeo login]",
)


@click.command(cls=MinitCommand)
@click.option("--full", is_flag=True, help="Print whole image ids.")
@pull_policy_option(PullPolicy.UPDATE)
@image_arch_option
@_authfile_option
@quiet_option
@click.option(
    "--signature",
    "signatures",
    metavar="FILE",
    multiple=True,
    help="Signature of an ACI; with several images one for each.  [default: IMAGE.asc]",
)
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True, type=click.Path())
@click.pass_obj
def fetch(
    invocation: Invocation,
    full: bool,
    pull_policy: str,
    processor: Processor | None,
    authfile: Path | None,
    quiet: bool,
    signatures: tuple[str, ...],
    images: tuple[str, ...],
) -> None:
    """
    \b
      minit fetch app.aci
      minit fetch --signature=app.aci.asc app.aci
      minit fetch oci:DIR[:TAG] oci-archive:FILE[:TAG] docker-archive:FILE[:NAME]
      minit fetch docker://[HOST/]NAME[:TAG|@DIGEST]        (needs skopeo, as do the next)
      minit fetch containers-storage:NAME docker-daemon:NAME:TAG dir:DIR
      minit --insecure-options=http,tls fetch docker://localhost:5000/app
      minit fetch --authfile=auth.json docker://registry.example.com/app
      minit fetch --arch=arm64 docker://debian:12

    """
    invocation.become_root()
    if signatures and len(signatures) != len(images):
        raise click.UsageError(f"--signature: {len(signatures)} signatures for {len(images)} images")
    credentials = _read_authfile(authfile)
    with Store(invocation.data) as store:
        for number, reference in enumerate(images):
            with show_progress(invocation, quiet=quiet) as progress:
                image = service.fetch(
                    invocation.caller,
                    store,
                    reference,
                    progress,
                    policy=PullPolicy(pull_policy),
                    processor=processor,
                    authfile=credentials,
                    signature=Path(signatures[number]) if signatures else None,
                )
            invocation.say(image if full else image[:_SHORT_ID])


@click.command(cls=MinitCommand)
@click.argument("image", metavar="IMAGE")
@click.argument("names", metavar="NAME[:TAG]...", nargs=-1, required=True)
@click.pass_obj
def tag(invocation: Invocation, image: str, names: tuple[str, ...]) -> None:
    """
    A name that another image was given goes over to this one.

    \b
      minit image tag example.com/web:1.2 web:latest registry.example.com/web:1.2

    """
    invocation.become_root()
    with Store(invocation.data) as store:
        service.tag(store, image, names)


@click.command(cls=MinitCommand)
@_authfile_option
@quiet_option
@click.argument("image", metavar="IMAGE")
@click.argument("target", metavar="[HOST/]NAME[:TAG]", required=False)
@click.pass_obj
def push(invocation: Invocation, authfile: Path | None, quiet: bool, image: str, target: str | None) -> None:
    """
    Layers arrive as they came, and so does the manifest of an image that came from a registry. Without another name the
    image's own counts. Needs skopeo.

    \b
      minit image push registry.example.com/web:2
      minit image push web:2 registry.example.com/team/web:2
      minit --insecure-options=http,tls push web:2 localhost:5000/web:2

    """
    invocation.become_root()
    credentials = _read_authfile(authfile)
    with Store(invocation.data) as store, show_progress(invocation, quiet=quiet) as progress:
        name, digest = service.push(invocation.caller, store, image, target, progress, credentials)
    invocation.say(f"{name}@{digest}")


def _read_authfile(path: Path | None) -> bytes | None:
    return None if path is None else read_given(path, "--authfile", _AUTHFILE_LIMIT_BYTES)


stage1_group = MinitGroup("stage1")


@stage1_group.command("build")
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    default="minit-stage1.aci",
    help="Image to write.  [default: minit-stage1.aci]",
)
@click.option("--plain", is_flag=True, help="Do not dump the interpreter: pods take longer to start.")
@arch_option
@quiet_option
@click.pass_obj
def build_stage1_image(invocation: Invocation, output: Path, plain: bool, arch: str | None, quiet: bool) -> None:
    """
    Build minit's stage1 image, for `minit run --stage1-path` or for rkt's.

    minit itself does so when it first needs the image. The interpreter in it is dumped with everything it has imported,
    where its static library is installed (Debian: libpython3-dev).

    \b
      minit stage1 build --output=/srv/minit-stage1.aci
      rkt run --insecure-options=image --stage1-path=/srv/minit-stage1.aci web.aci

    """
    processor = other_processor(arch)
    with show_progress(invocation, quiet=quiet) as progress:
        if processor is None:
            warning = build_stage1(output, progress, plain=plain)
        else:
            warning = _build_for(processor, output, progress, plain=plain)
    if warning is not None:
        invocation.note(warning)


@click.command(cls=MinitCommand)
@click.pass_obj
def version(invocation: Invocation) -> None:
    """
    \b
      minit version

    """
    invocation.say(f"minit Version: {minit.__version__}")
    invocation.say(f"appc Version: {APPC_VERSION}")
    invocation.say(f"Python Version: {platform.python_version()}")
    invocation.say(f"OS/Arch: {platform.system().lower()}/{platform.machine()}")


def other_processor(arch: str | None) -> ForeignProcessor | None:
    """Return the processor of --arch, None for this machine's; ImageError for a processor without a builder here."""
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


def _build_for(processor: ForeignProcessor, output: Path, progress: Progress, *, plain: bool) -> str | None:
    """Write minit's own stage1 image for a processor to a file; returns the same reason."""
    with _machine_of(processor) as directory:
        return build_foreign_stage1(processor, directory, output, progress, plain=plain)


def check_processors(stage1: StoredImage, apps: Iterable[StoredImage], arch: str | None) -> None:
    """Raise PodError unless all run on a machine of the architecture, by default the stage1 image's."""
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
    """Raise PodError for a kernel module for a processor other than the stage1 image's."""
    machine = processor_of_appc(stage1.manifest.label("arch") or "")
    for module in modules.modules:
        if int.from_bytes(module.data[_MACHINE], "little") != machine.elf_machine:
            raise PodError(f"kernel module {module.name} is for another processor, the machine is {machine.appc}")


def _first_use(progress: Progress) -> Progress:
    return lambda step, done, total: progress(f"for another processor (first use): {step}", done, total)


@contextmanager
def _machine_of(processor: ForeignProcessor) -> Iterator[Path]:
    """Yield the directory with the machine of a processor; an OSError of the with block becomes an ImageError."""
    machines = program_directory() / "machines"
    try:
        yield machines / processor.name
    except OSError as error:
        raise ImageError(f"cannot make a machine of {processor.name} in {machines}: {describe(error)}") from error
