"""The commands that make and run pods: run, prepare, run-prepared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from minit.base.errors import PodError, describe
from minit.base.hostname import find_fault
from minit.cli.commandgroups import COMMANDS
from minit.cli.commands.pods.endingcommands import cleanup_of
from minit.cli.commands.run.podrequest import make_request
from minit.cli.commands.run.podstart import refuse_detached_terminal, start_pod
from minit.cli.flags.imageargs import IMAGES, ImageCommand
from minit.cli.flags.runoptions import (
    app_options,
    background_options,
    prepare_options,
    run_options,
    uuid_file_save_option,
)
from minit.cli.flags.scalars import canonical_address
from minit.cli.flagwords import FlagError
from minit.cli.grammar import MinitCommand, invocation_of
from minit.cli.invocation import Invocation
from minit.cli.text.progressdisplay import show_progress
from minit.cli.uuidfile import uuid_file_first_option
from minit.stage0.images.store import Store
from minit.stage0.images.treestore import TreeStore
from minit.stage0.kubernetes.playedpods import take_down
from minit.stage0.pods.nameservice import MODE_DEFAULT, MODE_HOST, MODE_NONE, MODE_STAGE0, NameService
from minit.stage0.pods.poddirectory import find_pod, uuid_of_name
from minit.stage0.pods.podmanifest import unused_volumes
from minit.stage0.stage1.entrypoints import RunOptions
from minit.stage0.start.newpod import check_kernel, finish, prepare_pod
from minit.stage0.start.run import claim_prepared

_IMAGE_OPERANDS = "IMAGE [APP-OPTION]... [-- ARG...] [--- IMAGE...]"

_WITHOUT_PORTS = ("host", "none")


@click.command(cls=ImageCommand)
@prepare_options
@run_options
@background_options
@click.option("--replace", is_flag=True, help="Before, stop and remove the pod of the same --name, if there is one.")
@uuid_file_save_option
@app_options
@click.argument("image", nargs=-1, metavar=_IMAGE_OPERANDS, expose_value=False, type=click.Path())
@click.pass_context
def run(
    ctx: click.Context,
    /,
    uuid_file_save: Path | None,
    quiet: bool,
    detach: bool,
    removed: bool,
    replace: bool,
    **options: Any,
) -> None:
    """
    IMAGE is a file (.aci), oci:DIR, oci-archive:FILE, docker-archive:FILE, docker://NAME, or an image of the store by
    id, `name` or `name:version`. Options for an app follow its image; arguments for it follow `--` and end at `---` or
    at the end of the line.

    The exit code is that of the first app that fails, 0 if none does, 254 if the pod cannot be run.

    \b
      minit run busybox.aci --exec /bin/sh -- -c 'exit 42'
      minit run --port=http:8080 web.aci --name=web --- client.aci -- http://localhost
      minit run --net=none --volume=data,kind=host,source=/srv/data \\
        web.aci --mount=volume=data,target=/www --readonly-rootfs
      minit run --net=lan:IP=10.1.0.7 --dns=192.0.2.53 --hosts-entry=192.0.2.7=db --set-env-file=web.env web.aci

    """
    invocation = invocation_of(ctx)
    invocation.require_root()
    how = collect_run_options(invocation, options, quiet=quiet)
    refuse_detached_terminal(how, detach=detach)
    refuse_ports(options["net"], options["port"])
    if replace:
        _take_down(invocation, options["name"])
    with Store(invocation.data) as store:
        trees = TreeStore(invocation.data, store)
        with show_progress(invocation, quiet=quiet) as progress:
            request = make_request(invocation, store, ctx.meta[IMAGES], progress, **options)
            pod = prepare_pod(invocation.data, store, trees, request, progress, partial(save_uuid, uuid_file_save))
        start_pod(invocation, store, pod, how, detach=detach, removed=removed)


@click.command(cls=ImageCommand, short_help=COMMANDS["prepare"].help)
@prepare_options
@app_options
@click.argument("image", nargs=-1, metavar=_IMAGE_OPERANDS, expose_value=False, type=click.Path())
@click.pass_context
def prepare(ctx: click.Context, /, quiet: bool, **options: Any) -> None:
    """
    Make a pod of images, to be run later with run-prepared, and print its UUID.

    IMAGE is a file (.aci), oci:DIR, oci-archive:FILE, docker-archive:FILE, docker://NAME, or an image of the store by
    id, `name` or `name:version`. Options for an app follow its image; arguments for it follow `--` and end at `---` or
    at the end of the line.

    \b
      minit prepare busybox.aci --exec /bin/sh -- -c 'exit 42'
      minit prepare --volume=tmp,kind=empty,mode=1777 --mount=volume=tmp,target=/tmp a.aci b.aci

    """
    invocation = invocation_of(ctx)
    invocation.require_root()
    with Store(invocation.data) as store:
        trees = TreeStore(invocation.data, store)
        with show_progress(invocation, quiet=quiet) as progress:
            request = make_request(invocation, store, ctx.meta[IMAGES], progress, **options)
            pod = prepare_pod(invocation.data, store, trees, request, progress, lambda uuid: None)
        with pod:
            finish(pod)
            for name in unused_volumes(request.manifest_bytes):
                invocation.note(f'warning: no app mounts the volume "{name}"')
            invocation.say(pod.uuid)


@click.command("run-prepared", cls=MinitCommand)
@run_options
@background_options
@uuid_file_first_option
@click.argument("uuid", metavar="UUID")
@click.pass_obj
def run_prepared(invocation: Invocation, /, uuid: str, detach: bool, removed: bool, **options: Any) -> None:
    """
    UUID may be shortened to any prefix that only one pod has, or be the pod's name.

    \b
      minit run-prepared --net=host --dns=host --hosts-entry=host 2d381b2a

    """
    invocation.require_root()
    check_kernel()
    how = collect_run_options(invocation, options)
    refuse_detached_terminal(how, detach=detach)
    with (
        Store(invocation.data) as store,
        find_pod(invocation.data, uuid, invocation.note) as pod,
    ):
        claim_prepared(pod)
        start_pod(invocation, store, pod, how, detach=detach, removed=removed)


def _take_down(invocation: Invocation, name: str | None) -> None:
    if name is None:
        raise click.UsageError("--replace needs the name of the pod: --name before the first image")
    with Store(invocation.data) as store, cleanup_of(invocation, store) as cleanup:
        uuid = uuid_of_name(invocation.data, name)
        if uuid is not None:
            # Its own supervisor knows how long its apps may take.
            take_down(invocation.data, uuid, math.inf, cleanup, invocation.note)


def collect_run_options(
    invocation: Invocation, options: dict[str, Any], *, mutable: bool = False, quiet: bool = False
) -> RunOptions:
    """Return how the pod is to run; those of `options` that a command does not have are as if not given."""
    try:
        name_service = parse_name_service(
            options["dns"], options["dns_search"], options["dns_opt"], options["dns_domain"], options["hosts_entry"]
        )
        _check_hostname(options["hostname"])
    except FlagError as error:
        raise click.UsageError(str(error)) from error
    return RunOptions(
        debug=invocation.debug,
        networks=options["net"],
        interactive=options.get("interactive", False),
        local_config=invocation.local_config,
        hostname=options["hostname"],
        name_service=name_service,
        disable_capabilities_restriction="capabilities" in invocation.insecure,
        disable_paths="paths" in invocation.insecure,
        disable_seccomp="seccomp" in invocation.insecure,
        ipc=options.get("ipc"),
        mutable=mutable,
        quiet=quiet,
    )


def _check_hostname(name: str | None) -> None:
    fault = find_fault(name) if name else None
    if fault is not None:
        raise FlagError(f'--hostname: "{name}" {fault}')


def refuse_ports(networks: Sequence[str], ports: Sequence[str]) -> None:
    """Refuse ports of a pod that has no address of its own to which they could lead."""
    for network in (entry for value in networks for entry in value.split(",")):
        if ports and network in _WITHOUT_PORTS:
            raise click.UsageError(f"--port needs a network of the pod's own, --net={network} gives it none")


def save_uuid(path: Path | None, uuid: str) -> None:
    """Write a UUID to the file that the user chose, if any."""
    if path is None:
        return
    try:
        path.write_text(uuid)
    except OSError as error:
        # A write names no file.
        error.filename = path
        raise PodError(f"cannot save the UUID to {describe(error)}") from error


# `--dns…` and `--hosts-entry`: how the apps of a pod look up names. Pure.


def parse_name_service(
    dns: Sequence[str], search: Sequence[str], options: Sequence[str], domain: str | None, hosts_entry: Sequence[str]
) -> NameService:
    """Return what the five options say together; FlagError names the one that is wrong."""
    for flag, words, characters in (
        ("--dns-search", search, "-_."),
        ("--dns-opt", options, "-_.:"),
        ("--dns-domain", () if domain is None else (domain,), "-_."),
    ):
        for word in words:
            _check_word(flag, word, characters)
    resolv, nameservers = _parse_dns(dns)
    if resolv == MODE_DEFAULT and (search or options or domain):
        resolv = MODE_STAGE0
    if resolv in (MODE_HOST, MODE_NONE) and (search or options or domain):
        raise FlagError(f"--dns={resolv} excludes --dns-search, --dns-opt and --dns-domain")
    hosts, host_names = _parse_hosts(hosts_entry)
    return NameService(
        resolv=resolv,
        hosts=hosts,
        nameservers=nameservers,
        search=tuple(search),
        options=tuple(options),
        domain=domain,
        host_names=host_names,
    )


def _parse_dns(values: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the mode and the name servers."""
    words = [word for value in values for word in value.split(",")]
    for mode in (MODE_HOST, MODE_NONE):
        if mode in words:
            if set(words) != {mode}:
                raise FlagError(f"--dns={mode} excludes other values of --dns")
            return mode, ()
    for word in words:
        if canonical_address(word) is None:
            raise FlagError(f'--dns: expected IP addresses separated by commas, host or none, got "{word}"')
    return MODE_STAGE0 if words else MODE_DEFAULT, tuple(words)


def _parse_hosts(values: Sequence[str]) -> tuple[str, tuple[tuple[str, tuple[str, ...]], ...]]:
    """Return the mode and each address with its names, both in the order in which they were given."""
    words = [word for value in values for word in value.split(",")]
    if MODE_HOST in words:
        if set(words) != {MODE_HOST}:
            raise FlagError("--hosts-entry=host excludes other values of --hosts-entry")
        return MODE_HOST, ()
    names: dict[str, tuple[str, ...]] = {}
    for word in words:
        address, separator, name = word.partition("=")
        if not separator or canonical_address(address) is None:
            raise FlagError(f'--hosts-entry: expected IP=NAME,... or host, got "{word}"')
        _check_word("--hosts-entry", name, "-_.")
        names[address] = (*names.get(address, ()), name)
    return MODE_STAGE0 if words else MODE_DEFAULT, tuple(names.items())


def _check_word(flag: str, word: str, characters: str) -> None:
    # The files have words that white space separates, comments, and no way to quote.
    if not word or not all(character.isalnum() or character in characters for character in word):
        shown = " ".join(characters)
        raise FlagError(f'{flag}: expected one name of letters, digits and any of {shown}, got "{word}"')
