"""The command that builds images, of a Containerfile, of files of this machine, or of another image: image build."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from minit.base.progress import Progress
from minit.cli.flags.appoptions import parse_variable
from minit.cli.flags.sharedoptions import networks_option, pull_policy_option, quiet_option, stage1_path_option
from minit.cli.flagwords import Flag, FlagError
from minit.cli.grammar import MinitCommand, OptionalValue, invocation_of
from minit.cli.invocation import Invocation
from minit.cli.text.progressdisplay import show_progress
from minit.containerfile.build import ImageBuild, build
from minit.image.appimage import ImageFields, build_app_image
from minit.linux.stdio import flush_output
from minit.pods.ending import cleanup_of
from minit.pods.images import choose_stage1, trust_of
from minit.pods.requests import Stage1Request
from minit.pods.running import options_for
from minit.stage0.apps.export import write_image
from minit.stage0.building import Builder, CopyStep, RunStep, Step, built_manifest
from minit.stage0.files.temporary import output_file, scratch_directory
from minit.stage0.images.fetching import resolve_image
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import PullPolicy
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods.nameservice import MODE_HOST, NameService
from minit.stage0.pods.poddirectory import Pod
from minit.stage0.stage1.entrypoints import RunOptions
from minit.stage0.start.run import run_pod

_STEPS = f"{__name__}.steps"
_PULLS = {"always": "update", "newer": "update", "missing": "new", "ifnotpresent": "new", "never": "never"}


class _BuildCommand(MinitCommand):
    """Keeps the order of steps, which click loses, in the context."""

    def split(
        self, ctx: click.Context, arguments: Sequence[str], flags: dict[str, Flag]
    ) -> tuple[list[tuple[str, str]], list[str]]:
        """Return the flags and operands, and leave the steps among the flags in the context."""
        found, operands = super().split(ctx, arguments, flags)
        ctx.meta[_STEPS] = [_step(name, value) for name, value in found if name in ("--copy", "--run")]
        return found, operands


def _step(name: str, value: str) -> Step:
    if name == "--run":
        return RunStep(command=value)
    source, _, target = value.rpartition(":")
    if not source or not target.startswith("/"):
        raise FlagError(f'--copy: expected SOURCE:/PATH with an absolute path in the image, got "{value}"')
    return CopyStep(source=source, target=target)


@click.command("build", cls=_BuildCommand)
@click.option(
    "-f",
    "--file",
    metavar="FILE",
    type=click.Path(allow_dash=True, path_type=Path),
    help="Containerfile to build; - reads standard input.  [default: Containerfile or Dockerfile in CONTEXT]",
)
@click.option(
    "-t", "--tag", metavar="NAME[:TAG]", multiple=True, help="Name for the image of a Containerfile; repeatable."
)
@click.option(
    "--build-arg",
    metavar="NAME[=VALUE]",
    multiple=True,
    help="Value for an ARG, or that of this environment; repeatable.",
)
@click.option("--target", metavar="STAGE", help="Stage of the Containerfile to build.  [default: the last]")
@click.option("--no-cache", is_flag=True, help="Carry out steps of a Containerfile that were done before.")
@click.option(
    "--pull",
    cls=OptionalValue,
    bare="always",
    type=click.Choice(list(_PULLS)),
    help="When to fetch an image that FROM names.  [default: missing]",
)
@click.option("--iidfile", metavar="FILE", type=click.Path(path_type=Path), help="File that gets the id of the image.")
@click.option("--output", metavar="FILE", type=click.Path(path_type=Path), help="Image to write (.aci).")
@click.option("--name", metavar="NAME[:VERSION]", help="Name of the image.  [default: that of the output file]")
@click.option(
    "--from",
    "base",
    metavar="IMAGE",
    type=click.Path(),
    help="Image to begin with, as for run. Without --output the new image is put into the store.",
)
@click.option(
    "--copy",
    metavar="SOURCE:PATH",
    multiple=True,
    expose_value=False,
    help="File of this machine, or directory whose content is meant, and where it goes in the image; repeatable.",
)
@click.option(
    "--run",
    metavar="COMMAND",
    multiple=True,
    expose_value=False,
    help="Command for the image's shell, run by root in a pod; repeatable. Steps are done in the order given.",
)
@networks_option("Networks for --run or RUN, as for run.")
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
@click.option("--user", help="User to run it as.  [default: 0, or that of --from]")
@click.option("--group", help="Group to run it as.  [default: 0, or that of --from]")
@click.option("--env", metavar="NAME=VALUE", multiple=True, help="Environment variable; repeatable.")
@click.option("--workdir", metavar="DIR", help="Working directory.")
@click.option("--port", metavar="name=N,protocol=P,port=X", multiple=True, help="Port it listens on; repeatable.")
@click.option("--mount", metavar="name=N,path=P", multiple=True, help="Where it expects a volume; repeatable.")
@click.option("--label", metavar="NAME=VALUE", multiple=True, help="Label of the image, as `version`; repeatable.")
@pull_policy_option(PullPolicy.NEW)
@stage1_path_option
@quiet_option
@click.argument("arguments", metavar="[CONTEXT | -- ARG...]", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def build_image(
    ctx: click.Context,
    /,
    output: Path | None,
    name: str | None,
    base: str | None,
    rootfs: Path | None,
    from_host: tuple[Path, ...],
    program: str | None,
    user: str | None,
    group: str | None,
    env: tuple[str, ...],
    workdir: str | None,
    port: tuple[str, ...],
    mount: tuple[str, ...],
    label: tuple[str, ...],
    quiet: bool,
    iidfile: Path | None,
    arguments: tuple[str, ...],
    file: Path | None,
    tag: tuple[str, ...],
    build_arg: tuple[str, ...],
    target: str | None,
    no_cache: bool,
    pull: str | None,
    **building: Any,
) -> None:
    """
    With CONTEXT, a directory, or --file the image is that of a Containerfile (a Dockerfile). It is put into the store,
    and its id is printed.

    With --from the image has what that has, what --copy adds, and what the commands of --run make of it. They run in a
    pod, as confined as any app. What the options about the app do not say stays as it is.

    \b
      minit build -t web:1 .
      minit build --file Containerfile.dev --build-arg VERSION=2 --target test ./context
      minit image build --output busybox.aci --rootfs ./rootfs --exec /bin/sh
      minit image build --output web.aci --from-host /usr/bin/python3 --port name=http,protocol=tcp,port=8080 \\
          --exec /usr/bin/python3 -- -m http.server 8080
      minit image build --from docker://debian:12 --name example.com/web:1.0.0 --run 'apt-get update' \\
          --run 'apt-get install -y nginx' --copy site:/var/www --exec /usr/sbin/nginx -- -g 'daemon off;'

    """
    invocation = invocation_of(ctx)
    steps: list[Step] = ctx.meta[_STEPS]
    of_files = {
        "--from": base,
        "--rootfs": rootfs,
        "--from-host": from_host,
        "--exec": program,
        "--copy or --run": steps,
        "--output": output,
        "--name": name,
        "--user": user,
        "--group": group,
        "--env": env,
        "--workdir": workdir,
        "--port": port,
        "--mount": mount,
    }
    of_containerfile = {
        "--file": file,
        "--tag": tag,
        "--build-arg": build_arg,
        "--target": target,
        "--no-cache": no_cache,
        "--pull": pull,
        "--iidfile": iidfile,
    }
    other = next((word for word, value in of_files.items() if value), None)
    own = next((word for word, value in of_containerfile.items() if value), None)
    if own is not None and other is not None:
        raise click.UsageError(f"{own} is for a Containerfile, which {other} is not for")
    if other is None:
        if len(arguments) > 1 or not (arguments or own):
            raise click.UsageError(
                "expected one CONTEXT, a directory with a Containerfile (or --from, --rootfs or --from-host)"
            )
        request = ImageBuild(
            context=Path(*arguments),
            file=file,
            tags=tag,
            arguments=tuple(_argument(text) for text in build_arg),
            target=target,
            labels=tuple(_label(text) for text in label),
            networks=building["net"],
            uses_cache=not no_cache,
            pull_policy=PullPolicy(building["pull_policy"] if pull is None else _PULLS[pull]),
            is_quiet=quiet,
            stage1=Stage1Request(path=building["stage1_path"]),
        )
        _build_containerfile(invocation, request, iidfile)
        return
    if arguments and program is None:
        files = "files come by --rootfs, --from-host or --copy"
        raise click.UsageError(f'unexpected "{arguments[0]}": arguments are those of --exec, and {files}')
    image_name, colon, version = (name or (output.name.removesuffix(".aci") if output else "")).partition(":")
    labels = tuple(_label(text) for text in label)
    fields = ImageFields(
        name=image_name,
        exec=() if program is None else (program, *arguments),
        user=user,
        group=group,
        environment=tuple(_variable("--env", text) for text in env),
        working_directory=workdir,
        ports=tuple(_port(text) for text in port),
        mounts=tuple(_mount(text) for text in mount),
        labels=(*labels, ("version", version)) if colon else labels,
    )
    if base is None:
        if steps:
            raise click.UsageError("--copy and --run need --from")
        if output is None:
            raise click.UsageError("missing option '--output'")
        with show_progress(invocation, quiet=quiet) as progress:
            build_app_image(output, fields, progress, rootfs=rootfs, from_host=from_host)
        return
    if rootfs is not None or from_host:
        raise click.UsageError("--from excludes --rootfs and --from-host")
    if name is None and output is None:
        raise click.UsageError("an image for the store needs a name: give it with --name, or write it with --output")
    _build_from(invocation, base, steps, fields, output, quiet=quiet, **building)


def _build_containerfile(invocation: Invocation, request: ImageBuild, iidfile: Path | None) -> None:
    invocation.become_root(in_scope=True)
    with Store(invocation.data) as store, show_progress(invocation, quiet=request.is_quiet) as progress:
        image = build(invocation.caller, store, request, progress)
    if iidfile is not None:
        with output_file(iidfile, overwrite=True, exists="") as file:
            file.write(image.encode())
    invocation.say(image)


def _argument(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name:
        raise click.UsageError(f'--build-arg: expected NAME or NAME=VALUE, got "{text}"')
    return name, value if equals else os.environ.get(name, "")


def _build_from(
    invocation: Invocation,
    base: str,
    steps: Sequence[Step],
    fields: ImageFields,
    output: Path | None,
    *,
    quiet: bool,
    net: tuple[str, ...],
    pull_policy: str,
    stage1_path: str | None,
) -> None:
    invocation.become_root(in_scope=True)
    names = NameService() if "none" in net else NameService(resolv=MODE_HOST)
    how = options_for(invocation.caller, RunOptions(networks=net, name_service=names))
    data = invocation.data
    with Store(data) as store, cleanup_of(invocation.caller, store) as cleanup:
        trees = TreeStore(data, store)

        def run(pod: Pod) -> int:
            run_pod(pod, trees, how, invocation.note, flush_output)

        with show_progress(invocation, quiet=quiet) as progress:
            put_stage1 = choose_stage1(invocation.caller, store, Stage1Request(path=stage1_path))
            image = resolve_image(store, base, progress, PullPolicy(pull_policy), trust=trust_of(invocation.caller))
            manifest = built_manifest(image.manifest_bytes, fields)
            builder = Builder(
                data=data,
                store=store,
                trees=trees,
                stage1=put_stage1(progress),
                base=image,
                insecure=invocation.insecure,
                run=run,
                cleanup=cleanup,
                note=invocation.note,
                progress=progress,
            )
            with builder.root(steps, fields.environment, fields.working_directory) as root:
                _write(invocation, store, root, manifest, output, progress)


def _write(
    invocation: Invocation, store: Store, root: int, manifest: bytes, output: Path | None, progress: Progress
) -> None:
    def count(done_bytes: int) -> None:
        progress("packing the image", done_bytes, None)

    if output is not None:
        with output_file(output, overwrite=True, exists="") as file:
            write_image(file, root, manifest, None, invocation.note, count)
        return
    with scratch_directory(store.temporary) as scratch:
        path = scratch / "image.aci"
        with path.open("xb") as file:
            write_image(file, root, manifest, None, invocation.note, count)
        invocation.say(store.import_file(path, progress).id)


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
