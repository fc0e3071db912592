"""The commands that bring images about: fetch, image build, stage1 build; and version."""

from __future__ import annotations

import platform
from pathlib import Path

import click

import minit
from minit.cli.flags.environmentflags import parse_variable
from minit.cli.flags.sharedoptions import pull_policy_option, quiet_option
from minit.cli.flagwords import FlagError
from minit.cli.grammar import MinitCommand, MinitGroup
from minit.cli.invocation import Invocation
from minit.cli.text.progressdisplay import show_progress
from minit.image.appimage import build_app_image
from minit.image.stage1 import build_stage1
from minit.manifest.image import APPC_VERSION
from minit.stage0.images.imagechoice import resolve_image
from minit.stage0.images.pullpolicy import PullPolicy
from minit.stage0.images.store import Store
from minit.stage0.images.treestore import TreeStore

_SHORT_ID = len("sha512-") + 32


@click.command(cls=MinitCommand)
@click.option("--full", is_flag=True, help="Print whole image ids.")
@pull_policy_option(PullPolicy.UPDATE)
@quiet_option
@click.option(
    "--signature", metavar="FILE", multiple=True, expose_value=False, help="Accepted for rkt's sake; not read."
)
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True, type=click.Path())
@click.pass_obj
def fetch(invocation: Invocation, full: bool, pull_policy: str, quiet: bool, images: tuple[str, ...]) -> None:
    """
    Import images into the store and print their ids.

    \b
      minit fetch app.aci
      minit fetch oci:DIR[:TAG] oci-archive:FILE[:TAG] docker-archive:FILE[:NAME]
      minit fetch docker://[HOST/]NAME[:TAG|@DIGEST]        (needs skopeo, as do the next)
      minit fetch containers-storage:NAME docker-daemon:NAME:TAG dir:DIR
      minit --insecure-options=http,tls fetch docker://localhost:5000/app

    """
    invocation.require_root()
    with Store(invocation.data) as store:
        trees = TreeStore(invocation.data, store)
        for reference in images:
            with show_progress(invocation, quiet=quiet) as progress:
                image = resolve_image(
                    store, reference, progress, PullPolicy(pull_policy), verify_tls=invocation.verifies_tls
                )
                trees.render(image.id, progress)
            invocation.say(image.id if full else image.id[:_SHORT_ID])


@click.command("build", cls=MinitCommand)
@click.option("--output", metavar="FILE", required=True, type=click.Path(path_type=Path), help="Image to write (.aci).")
@click.option("--name", metavar="NAME", help="Name of the image.  [default: that of the output file]")
@click.option(
    "--rootfs",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory with the files of the image.",
)
@click.option(
    "--from-host",
    metavar="PATH",
    multiple=True,
    type=click.Path(path_type=Path),
    help="File of this machine to copy, a program with all shared libraries it needs; repeatable.",
)
@click.option("--exec", "program", metavar="PATH", help="Program to run; ARGs are its arguments.")
@click.option("--user", default="0", help="User to run it as.  [default: 0]")
@click.option("--group", default="0", help="Group to run it as.  [default: 0]")
@click.option("--env", metavar="NAME=VALUE", multiple=True, help="Environment variable; repeatable.")
@click.option("--workdir", metavar="DIR", help="Working directory.")
@click.option("--port", metavar="name=N,protocol=P,port=X", multiple=True, help="Port it listens on; repeatable.")
@click.option("--mount", metavar="name=N,path=P", multiple=True, help="Where it expects a volume; repeatable.")
@click.option("--label", metavar="NAME=VALUE", multiple=True, help="Label of the image, as `version`; repeatable.")
@quiet_option
@click.argument("arguments", metavar="[-- ARG...]", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def build_image(
    invocation: Invocation,
    output: Path,
    name: str | None,
    rootfs: Path | None,
    from_host: tuple[Path, ...],
    program: str | None,
    user: str,
    group: str,
    env: tuple[str, ...],
    workdir: str | None,
    port: tuple[str, ...],
    mount: tuple[str, ...],
    label: tuple[str, ...],
    quiet: bool,
    arguments: tuple[str, ...],
) -> None:
    """
    Build an app image from a directory, from files of this machine, or both.

    \b
      minit image build --output busybox.aci --rootfs ./rootfs --exec /bin/sh
      minit image build --output web.aci --from-host /usr/bin/python3 --port name=http,protocol=tcp,port=8080 \\
          --exec /usr/bin/python3 -- -m http.server 8080

    """
    if arguments and program is None:
        raise click.UsageError("arguments after -- need --exec")
    with show_progress(invocation, quiet=quiet) as progress:
        build_app_image(
            output,
            name=name or output.name.removesuffix(".aci"),
            rootfs=rootfs,
            from_host=from_host,
            exec=() if program is None else (program, *arguments),
            user=user,
            group=group,
            environment=[_variable("--env", text) for text in env],
            working_directory=workdir,
            ports=[_port(text) for text in port],
            mounts=[_mount(text) for text in mount],
            labels=[_label(text) for text in label],
            progress=progress,
        )


@click.group("stage1", cls=MinitGroup)
def stage1_group() -> None:
    """Build minit's stage1 image."""


@stage1_group.command("build")
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    default="minit-stage1.aci",
    help="Image to write.  [default: minit-stage1.aci]",
)
@click.option("--plain", is_flag=True, help="Do not dump the interpreter: pods take longer to start.")
@quiet_option
@click.pass_obj
def build_stage1_image(invocation: Invocation, output: Path, plain: bool, quiet: bool) -> None:
    """
    Build minit's stage1 image, for `minit run --stage1-path` or for rkt's.

    minit itself does so when it first needs the image. The interpreter in it is dumped with everything it has imported,
    where its static library is installed (Debian: libpython3-dev).

    \b
      minit stage1 build --output=/srv/minit-stage1.aci
      rkt run --insecure-options=image --stage1-path=/srv/minit-stage1.aci web.aci

    """
    with show_progress(invocation, quiet=quiet) as progress:
        warning = build_stage1(output, progress, plain=plain)
    if warning is not None:
        invocation.note(warning)


@click.command(cls=MinitCommand)
@click.pass_obj
def version(invocation: Invocation) -> None:
    """
    Print the versions of minit and of what it runs on.

    \b
      minit version

    """
    invocation.say(f"minit Version: {minit.__version__}")
    invocation.say(f"appc Version: {APPC_VERSION}")
    invocation.say(f"Python Version: {platform.python_version()}")
    invocation.say(f"OS/Arch: {platform.system().lower()}/{platform.machine()}")


def _variable(flag: str, text: str) -> tuple[str, str]:
    try:
        return parse_variable(flag, text)
    except FlagError as error:
        raise click.UsageError(str(error)) from error


def _label(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise click.UsageError(f'--label: expected NAME=VALUE, got "{text}"')
    return name, value


def _port(text: str) -> tuple[str, str, int]:
    fields = _fields("--port", text, ("name", "protocol", "port"))
    if not (fields["port"].isascii() and fields["port"].isdigit() and 0 < int(fields["port"]) < 65536):
        raise click.UsageError(f'--port: expected a port number, got "{fields["port"]}"')
    return fields["name"], fields["protocol"], int(fields["port"])


def _mount(text: str) -> tuple[str, str]:
    fields = _fields("--mount", text, ("name", "path"))
    return fields["name"], fields["path"]


def _fields(flag: str, text: str, keys: tuple[str, ...]) -> dict[str, str]:
    """Return the values of `key=value,…`, all of whose keys must be given once."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    if sorted(key for key, _, _ in pairs) != sorted(keys) or not all(value for _, _, value in pairs):
        raise click.UsageError(f'{flag}: expected {",".join(f"{key}=..." for key in keys)}, got "{text}"')
    return {key: value for key, _, value in pairs}
