"""The commands that bring images about: fetch, stage1 build; and version."""

from __future__ import annotations

import platform
from pathlib import Path

import click

import minit
from minit.base.errors import StoreError, describe
from minit.base.processors import Processor
from minit.cli.commands.images.otherprocessor import build_for, other_processor
from minit.cli.flags.sharedoptions import arch_option, image_arch_option, pull_policy_option, quiet_option
from minit.cli.grammar import MinitCommand, MinitGroup
from minit.cli.invocation import Invocation
from minit.cli.text.progressdisplay import show_progress
from minit.image.stage1 import build_stage1
from minit.manifest.image import APPC_VERSION
from minit.podfiles.boundedfile import read_at_most
from minit.pods import images as service
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import PullPolicy

_AUTHFILE_LIMIT_BYTES = 1 << 20
_SHORT_ID = len("sha512-") + 32


@click.command(cls=MinitCommand)
@click.option("--full", is_flag=True, help="Print whole image ids.")
@pull_policy_option(PullPolicy.UPDATE)
@image_arch_option
@click.option(
    "--authfile",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Credentials for registries, containers-auth.json(5); none if it is empty.  [default: skopeo login]",
)
@quiet_option
@click.option(
    "--signature", metavar="FILE", multiple=True, expose_value=False, help="Accepted for rkt's sake; not read."
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
    images: tuple[str, ...],
) -> None:
    """
    \b
      minit fetch app.aci
      minit fetch oci:DIR[:TAG] oci-archive:FILE[:TAG] docker-archive:FILE[:NAME]
      minit fetch docker://[HOST/]NAME[:TAG|@DIGEST]        (needs skopeo, as do the next)
      minit fetch containers-storage:NAME docker-daemon:NAME:TAG dir:DIR
      minit --insecure-options=http,tls fetch docker://localhost:5000/app
      minit fetch --authfile=auth.json docker://registry.example.com/app
      minit fetch --arch=arm64 docker://debian:12

    """
    invocation.require_root()
    credentials = None if authfile is None else _read_authfile(authfile)
    with Store(invocation.data) as store:
        for reference in images:
            with show_progress(invocation, quiet=quiet) as progress:
                image = service.fetch(
                    invocation.caller,
                    store,
                    reference,
                    progress,
                    policy=PullPolicy(pull_policy),
                    processor=processor,
                    authfile=credentials,
                )
            invocation.say(image if full else image[:_SHORT_ID])


def _read_authfile(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            content = read_at_most(file, _AUTHFILE_LIMIT_BYTES + 1)
    except OSError as error:
        raise StoreError(f"--authfile: {describe(error)}") from error
    if len(content) > _AUTHFILE_LIMIT_BYTES:
        raise StoreError(f"--authfile: {path}: more than {_AUTHFILE_LIMIT_BYTES} bytes")
    return content


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
            warning = build_for(processor, output, progress, plain=plain)
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
