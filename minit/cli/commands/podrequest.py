"""From the command lines of run, prepare and app sandbox to the request for a pod, and the way to run it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from minit.base.errors import PodError, describe
from minit.base.hostname import canonical_address, find_fault
from minit.base.idrange import IdRange
from minit.base.processors import Processor
from minit.base.value import replace
from minit.cli.flags.appoptions import Variables, parse_annotation, parse_environment_files, parse_pair, parse_variables
from minit.cli.flags.runoptions import parse_direct_port, parse_port
from minit.cli.flags.sharedoptions import choose_file
from minit.cli.flags.volumeflags import check_volumes, parse_mount, parse_storage, parse_tmpfs, parse_volume
from minit.cli.flagwords import FlagError
from minit.linux.hostnotify import DESCRIPTOR_VARIABLE, SOCKET_VARIABLE
from minit.manifest.annotations import Annotation, Place, known_annotations
from minit.manifest.names import is_environment_name
from minit.pods.requests import AppRequest, PodRequest, Stage1Request
from minit.stage0.images.storedimage import PullPolicy
from minit.stage0.images.treestore import IMAGE
from minit.stage0.pods.nameservice import MODE_DEFAULT, MODE_HOST, MODE_NONE, MODE_STAGE0, NameService, find_name_fault
from minit.stage0.stage1.entrypoints import RunOptions

# sd_notify(3), sd_listen_fds(3) and sd_watchdog_enabled(3): of sockets, descriptors and processes that no app has.
_OF_THE_MANAGER = frozenset(
    {
        SOCKET_VARIABLE,
        DESCRIPTOR_VARIABLE,
        *("LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDS", "LISTEN_FDNAMES"),
        *("WATCHDOG_PID", "WATCHDOG_USEC"),
    }
)

_HOST = "host"
_WITHOUT_PORTS = ("host", "none")
_NAME_FLAGS = {
    "nameservers": "--dns",
    "search": "--dns-search",
    "options": "--dns-opt",
    "domain": "--dns-domain",
    "host_names": "--hosts-entry",
}


def pod_request(
    apps: Sequence[AppRequest],
    *,
    no_overlay: bool,
    private_users: IdRange | bool,
    name: str | None,
    pod_manifest: Path | None,
    volume: Sequence[str],
    mount: Sequence[str],
    port: Sequence[str],
    network_alias: Sequence[str],
    tmpfs: Sequence[str],
    set_env: Sequence[str],
    set_env_file: Sequence[Path],
    inherit_env: bool,
    pull_policy: str,
    processor: Processor | None,
    pid: str | None,
    stage1_path: str | None,
    stage1_name: str | None,
    stage1_hash: str | None,
    stage1_from_dir: str | None,
    stage1_url: str | None,
    **_others: object,
) -> PodRequest:
    """Return the pod described by the options of run and prepare; UsageError for options that contradict each other."""
    whole = PodRequest(
        stage1=stage1_request(stage1_path, stage1_name, stage1_hash, stage1_from_dir, stage1_url),
        name=name,
        wants_overlay=not no_overlay,
        private_users=private_users,
    )
    if pod_manifest is not None:
        _refuse_beside_manifest(
            {
                "images": apps,
                "--volume": volume,
                "--mount": mount,
                "--port": port,
                "--network-alias": network_alias,
                "--tmpfs": tmpfs,
                "--set-env": set_env,
                "--set-env-file": set_env_file,
                "--inherit-env": inherit_env,
                "--pid": pid,
                "--pull-policy": pull_policy != PullPolicy.NEW.value,
                "--arch": processor,
            }
        )
        return replace(whole, manifest=pod_manifest)
    try:
        storage, short_mounts = parse_storage("--volume", volume, os.getcwd())
        memory, memory_mounts, sizes = parse_tmpfs("--tmpfs", tmpfs)
        aliases: dict[str, str] = {Annotation.POD_ALIASES: ",".join(network_alias)} if network_alias else {}
        apps, annotations = pod_annotations(apps, {**sizes, **aliases})
        storage += memory
        mounts = (*short_mounts, *memory_mounts, *(parse_mount("--mount", text) for text in mount))
        check_volumes(storage, mounts, [app.overrides.mounts for app in apps])
        request = replace(
            whole,
            apps=tuple(replace(app, pull_policy=PullPolicy(pull_policy), processor=processor) for app in apps),
            host_pids=pid == _HOST,
            inherited=_own_environment() if inherit_env else (),
            from_file=variables_of_files(set_env_file),
            environment=parse_variables("--set-env", set_env),
            volumes=storage,
            mounts=mounts,
            ports=tuple(parse_port("--port", text) for text in port),
            annotations=annotations,
        )
    except FlagError as error:
        raise click.UsageError(str(error)) from error
    # Errors of options come first: an option without a value may have taken the image as the value.
    if not apps:
        raise click.UsageError("no image given")
    return request


def pod_annotations(
    apps: Sequence[AppRequest], given: Mapping[str, str]
) -> tuple[tuple[AppRequest, ...], tuple[tuple[str, str], ...]]:
    """Return apps without the annotations that only pods have, and the pod's; FlagError if two of one name differ."""
    only = known_annotations(Place.POD) - known_annotations(Place.APP)
    of_pod = dict(given)
    changed = []
    for app in apps:
        annotations = app.overrides.annotations
        for name, value in annotations:
            if name in only and of_pod.setdefault(name, value) != value:
                raise FlagError(f"annotation {name}: it is the pod's, and said twice")
        own = tuple(pair for pair in annotations if pair[0] not in only)
        changed.append(replace(app, overrides=replace(app.overrides, annotations=own)))
    return tuple(changed), tuple(of_pod.items())


def sandbox_request(
    *,
    no_overlay: bool,
    private_users: IdRange | bool,
    name: str | None,
    volume: Sequence[str],
    port: Sequence[str],
    annotation: Sequence[str],
    user_annotation: Sequence[str],
    user_label: Sequence[str],
    pid: str | None,
    stage1_path: str | None,
    stage1_name: str | None,
    stage1_hash: str | None,
    stage1_from_dir: str | None,
    stage1_url: str | None,
    **_others: object,
) -> PodRequest:
    """Return the pod without apps described by the options of app sandbox."""
    try:
        volumes = tuple(parse_volume("--volume", text) for text in volume)
        check_volumes(volumes, (), ())
        if any(each.kind == IMAGE for each in volumes):
            raise FlagError("--volume: apps bring volumes of kind image with them: --mnt-volume of app add")
        return PodRequest(
            is_mutable=True,
            stage1=stage1_request(stage1_path, stage1_name, stage1_hash, stage1_from_dir, stage1_url),
            name=name,
            wants_overlay=not no_overlay,
            private_users=private_users,
            host_pids=pid == _HOST,
            volumes=volumes,
            ports=tuple(parse_direct_port("--port", text) for text in port),
            annotations=tuple(parse_annotation("--annotation", text) for text in annotation),
            user_annotations=tuple(parse_pair("--user-annotation", text) for text in user_annotation),
            user_labels=tuple(parse_pair("--user-label", text) for text in user_label),
        )
    except FlagError as error:
        raise click.UsageError(str(error)) from error


def run_options(
    *,
    net: tuple[str, ...],
    hostname: str | None,
    dns: Sequence[str],
    dns_search: Sequence[str],
    dns_opt: Sequence[str],
    dns_domain: str | None,
    hosts_entry: Sequence[str],
    interactive: bool = False,
    ipc: str | None = None,
    mutable: bool = False,
    quiet: bool = False,
    **_others: object,
) -> RunOptions:
    """Return the way to run a pod, from the options of run, run-prepared and app sandbox."""
    try:
        name_service = parse_name_service(dns, dns_search, dns_opt, dns_domain, hosts_entry)
        _check_hostname(hostname)
    except FlagError as error:
        raise click.UsageError(str(error)) from error
    return RunOptions(
        networks=net,
        interactive=interactive,
        hostname=hostname,
        name_service=name_service,
        ipc=ipc,
        mutable=mutable,
        quiet=quiet,
    )


def refuse_ports(networks: Sequence[str], ports: Sequence[str]) -> None:
    """Refuse ports of a pod without an own address for the ports to lead to."""
    for network in (entry for value in networks for entry in value.split(",")):
        if ports and network in _WITHOUT_PORTS:
            raise click.UsageError(f"--port needs a network of the pod's own, --net={network} gives it none")


def variables_of_files(paths: Sequence[Path]) -> Variables:
    """Return the environment in the files of --set-env-file; PodError for an unreadable file, FlagError for a text."""
    return parse_environment_files("--set-env-file", [(str(path), _read_environment_file(path)) for path in paths])


def stage1_request(
    stage1_path: str | None,
    stage1_name: str | None,
    stage1_hash: str | None,
    stage1_from_dir: str | None,
    stage1_url: str | None,
) -> Stage1Request:
    """Return the stage1 image that the --stage1 options mean; UsageError for options that exclude each other."""
    file = choose_file(stage1_path, stage1_from_dir, stage1_url)
    if sum(choice is not None for choice in (file, stage1_name, stage1_hash)) > 1:
        raise click.UsageError("the --stage1 options exclude each other")
    return Stage1Request(path=file, reference=stage1_name or stage1_hash)


def _refuse_beside_manifest(given: dict[str, object]) -> None:
    excluded = ", ".join(what for what, values in given.items() if values)
    if excluded:
        raise click.UsageError(f"--pod-manifest excludes {excluded}: write what you mean into the manifest")


def _own_environment() -> Variables:
    """
    Return what a manifest can hold of minit's own environment: shells export functions under odd names.

    What a service manager says to the process that it has started is for that one alone.
    """
    return tuple(
        (name, value)
        for name, value in os.environ.items()
        if is_environment_name(name) and _is_text(value) and name not in _OF_THE_MANAGER
    )


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # bytes that are no UTF-8
        return False
    return True


def _read_environment_file(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise PodError(f"--set-env-file: {describe(error)}") from error
    except UnicodeDecodeError as error:
        raise PodError(f"--set-env-file: {path}: expected UTF-8, got 0x{error.object[error.start]:02x}") from error


def _check_hostname(name: str | None) -> None:
    fault = find_fault(name) if name else None
    if fault is not None:
        raise FlagError(f'--hostname: "{name}" {fault}')


# `--dns…` and `--hosts-entry`: how the apps of a pod look up names. Pure.


def parse_name_service(
    dns: Sequence[str], search: Sequence[str], options: Sequence[str], domain: str | None, hosts_entry: Sequence[str]
) -> NameService:
    """Return the service described by the five options together; FlagError names the wrong option."""
    resolv, nameservers = _parse_dns(dns)
    if resolv == MODE_DEFAULT and (search or options or domain):
        resolv = MODE_STAGE0
    if resolv in (MODE_HOST, MODE_NONE) and (search or options or domain):
        raise FlagError(f"--dns={resolv} excludes --dns-search, --dns-opt and --dns-domain")
    hosts, host_names = _parse_hosts(hosts_entry)
    service = NameService(
        resolv=resolv,
        hosts=hosts,
        nameservers=nameservers,
        search=tuple(search),
        options=tuple(options),
        domain=domain,
        host_names=host_names,
    )
    fault = find_name_fault(service)
    if fault is not None:
        field, text = fault
        raise FlagError(f"{_NAME_FLAGS[field]}: {text}")
    return service


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
        names[address] = (*names.get(address, ()), name)
    return MODE_STAGE0 if words else MODE_DEFAULT, tuple(names.items())
