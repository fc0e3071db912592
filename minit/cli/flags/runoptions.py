"""The options of the commands that make pods and apps, in the order of the help."""

from __future__ import annotations

import re
from pathlib import Path

import click

from minit.base.goflags import BOOLEANS
from minit.base.hostname import canonical_address
from minit.base.idrange import IdRange, parse_id_range
from minit.cli.flags.appoptions import DEVICE_FORM, OUTPUT_MODES, STDIN_MODES
from minit.cli.flags.sharedoptions import (
    STAGE1_IMAGES,
    image_arch_option,
    in_order,
    networks_option,
    no_overlay_option,
    pull_policy_option,
    quiet_option,
    stage1_path_option,
)
from minit.cli.flags.volumeflags import MOUNT_FORM, MOUNTED_VOLUME_FORM
from minit.cli.flagwords import FlagError, parse_number
from minit.cli.grammar import AppOption, OptionalValue, SharedAppOption
from minit.manifest.app import MAX_PORT, Port
from minit.manifest.names import is_ac_name
from minit.manifest.pod import ExposedPort
from minit.stage0.images.storedimage import PullPolicy
from minit.stage0.stage1.entrypoints import DEFAULT_NETWORK

_PORT_FORM = "[IP:]PORT:PORT[/udp] or NAME:[IP:]PORT"
_DIRECT_PORT_FORM = "NAME:PROTOCOL:PORT:HOSTIP:HOSTPORT"

_PROTOCOLS = ("tcp", "udp")
# The form of docker and podman. rkt's form begins with a name, which number and address are not.
_BY_NUMBER = re.compile(
    r"((?P<address>\[[^\]]*\]|[^:]*\.[^:]*):)?(?P<host>[0-9]+):(?P<pod>[0-9]+)(/(?P<protocol>[^/]*))?"
)


def _refuse_metadata_service(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        raise click.BadParameter("minit has no metadata service; leave it out", ctx, parameter)


_DOCKERS_USERS = {"auto": True, "host": False}


class _PrivateUsers(click.ParamType[IdRange | bool]):
    """A range of ids, or whether ids are chosen."""

    name = "SHIFT:COUNT"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> IdRange | bool:
        """Return the range, or whether a range is to be chosen."""
        if isinstance(value, (IdRange, bool)):
            return value
        text = str(value)
        found = (BOOLEANS | _DOCKERS_USERS).get(text, parse_id_range(text))
        if found is None:
            self.fail(f'"{text}": expected SHIFT:COUNT, ids of the host from 1 to 4294967294', param, ctx)
        return found


_process_options = in_order(
    click.option(
        "--exec", "--entrypoint", cls=AppOption, metavar="PATH", help="Program to run instead of the image's."
    ),
    click.option(
        "--cmd",
        cls=AppOption,
        metavar="WORD",
        help="Word to run instead of the command of an image of Docker or OCI, after the entrypoint of that.",
    ),
    click.option(
        "--user",
        "-u",
        cls=AppOption,
        metavar="USER[:GROUP]",
        help="User, by name, number or a file owned by the user; a group may follow.",
    ),
    click.option("--group", cls=AppOption, help="Group, by name, number or a file owned by it."),
    click.option(
        "--supplementary-gids", "--group-add", cls=AppOption, metavar="GID,...", help="Further group numbers."
    ),
    click.option("--working-dir", "--workdir", "-w", cls=AppOption, metavar="DIR", help="Working directory."),
    click.option(
        "--environment",
        "--env",
        "-e",
        cls=AppOption,
        metavar="NAME=VALUE",
        help="Environment variable; repeatable.",
    ),
)

_confinement_options = in_order(
    click.option(
        "--readonly-rootfs", "--read-only", cls=AppOption, is_flag=True, help="Make the root of the app read-only."
    ),
    click.option("--stdin", cls=AppOption, type=click.Choice(STDIN_MODES), help="Standard input.  [default: null]"),
    click.option("--stdout", cls=AppOption, type=click.Choice(OUTPUT_MODES), help="Standard output.  [default: log]"),
    click.option("--stderr", cls=AppOption, type=click.Choice(OUTPUT_MODES), help="Standard error.  [default: log]"),
    click.option(
        "--memory",
        "-m",
        cls=AppOption,
        metavar="BYTES",
        help="Limit of memory, for example 64M or 1Gi; in 64m and 1g letters are powers of 1024.",
    ),
    click.option(
        "--memory-swap", cls=AppOption, metavar="BYTES", help="Limit of memory and swap together; -1 for any."
    ),
    click.option(
        "--cpu", "--cpus", cls=AppOption, metavar="CPUS", help="Limit of processor time, for example 500m or 2."
    ),
    click.option("--cpu-shares", "-c", cls=AppOption, metavar="N", help="Weight against other apps, from 2 to 262144."),
    click.option("--cpuset-cpus", cls=AppOption, metavar="LIST", help="Processors of the app, as in 0-2,7."),
    click.option("--pids-limit", cls=AppOption, metavar="N", help="Most processes and threads of the app; -1 for any."),
    click.option(
        "--ulimit",
        cls=AppOption,
        metavar="NAME=SOFT[:HARD]",
        help="Limit of getrlimit(2), as in nofile=1024:2048, or host for all of the caller's; repeatable.",
    ),
    click.option("--oom-score-adj", cls=AppOption, metavar="N", help="From -1000 (spare) to 1000 (kill first)."),
    click.option("--caps-retain", cls=AppOption, metavar="CAP,...", help="The only capabilities to leave the app."),
    click.option("--caps-remove", cls=AppOption, metavar="CAP,...", help="Capabilities to take from the default ones."),
    click.option(
        "--cap-add",
        cls=AppOption,
        metavar="CAP,...",
        help="Capabilities beside the default ones, or all of them with ALL; repeatable.",
    ),
    click.option(
        "--cap-drop",
        cls=AppOption,
        metavar="CAP,...",
        help="Capabilities to take away, or with ALL all but those of --cap-add; repeatable.",
    ),
    click.option(
        "--seccomp",
        cls=AppOption,
        metavar="mode=retain|remove[,errno=E],CALL,...",
        help="System calls, or @sets of them, to allow alone (retain) or to forbid (remove); or profile=FILE, "
        "unconfined, guarded or by-capabilities.",
    ),
    click.option(
        "--device",
        cls=AppOption,
        metavar=DEVICE_FORM,
        help="Device of the host, all of a directory, or one of CDI; repeatable.",
    ),
    click.option(
        "--restart",
        cls=AppOption,
        metavar="no|always|on-failure[:N]",
        help="Start the app again after its end; unless-stopped is always.",
    ),
    click.option("--stop-signal", cls=AppOption, metavar="SIGNAL", help="Signal that stops the app.  [default: TERM]"),
    click.option(
        "--stop-timeout", cls=AppOption, metavar="SECONDS", help="Time from the signal to SIGKILL.  [default: 10]"
    ),
    click.option("--health-cmd", cls=AppOption, metavar="COMMAND", help="Command for the shell that checks the app."),
    click.option("--health-interval", cls=AppOption, metavar="DURATION", help="Time between checks.  [default: 30s]"),
    click.option("--health-timeout", cls=AppOption, metavar="DURATION", help="Time for a check.  [default: 30s]"),
    click.option("--health-retries", cls=AppOption, metavar="N", help="Failures until unhealthy.  [default: 3]"),
    click.option("--health-start-period", cls=AppOption, metavar="DURATION", help="Time before the first check."),
    click.option("--no-healthcheck", cls=AppOption, is_flag=True, help="Leave out the check that the image asks for."),
    click.option(
        "--sysctl",
        cls=AppOption,
        metavar="NAME=VALUE",
        help="Setting of the kernel for the namespaces of the pod; repeatable.",
    ),
    click.option("--shm-size", cls=AppOption, metavar="BYTES", help="Size of the pod's /dev/shm."),
    click.option(
        "--annotation",
        cls=AppOption,
        metavar="NAME=VALUE",
        help="Annotation; repeatable. One that only pods have is the pod's.",
    ),
    click.option("--user-annotation", cls=AppOption, metavar="NAME=VALUE", help="User annotation; repeatable."),
    click.option("--user-label", "--label", "-l", cls=AppOption, metavar="NAME=VALUE", help="User label; repeatable."),
    click.option("--signature", cls=AppOption, metavar="FILE", help="Signature of the image.  [default: IMAGE.asc]"),
)

app_options = in_order(
    click.option(
        "--name",
        cls=SharedAppOption,
        metavar="NAME",
        help="Name of the app.  [default: end of the image's name] Before the first image: name of the pod, which"
        " commands take in the place of its UUID.",
    ),
    _process_options,
    click.option(
        "--mount",
        cls=SharedAppOption,
        multiple=True,
        metavar=MOUNT_FORM,
        help="Where the app sees a volume; repeatable. Before the first image: for all apps.",
    ),
    _confinement_options,
)

added_app_options = in_order(
    click.option("--name", cls=AppOption, metavar="NAME", help="Name of the app.  [default: end of the image's name]"),
    _process_options,
    click.option(
        "--mount", cls=AppOption, metavar=MOUNT_FORM, help="Where the app sees a volume of the pod; repeatable."
    ),
    click.option(
        "--mnt-volume",
        cls=AppOption,
        metavar=MOUNTED_VOLUME_FORM,
        help="A volume of the app alone, and where the app sees it; repeatable. The fields are those of --volume.",
    ),
    _confinement_options,
)

uuid_file_save_option = click.option(
    "--uuid-file-save",
    "--cidfile",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the pod's UUID to a file as soon as it is known.",
)

stage1_image_options = in_order(
    stage1_path_option,
    click.option("--stage1-name", metavar="NAME[:VERSION]", help="Stage1 image to use: one of the store, by name."),
    click.option("--stage1-hash", metavar="ID", help="Stage1 image to use: one of the store, by id."),
    click.option(
        "--stage1-from-dir", metavar="NAME", help=f"Stage1 image to use: one of those in {STAGE1_IMAGES}, by file name."
    ),
    click.option("--stage1-url", metavar="URL", help="Stage1 image to use: a file: URL."),
)

stage1_options = in_order(
    stage1_image_options,
    no_overlay_option,
    click.option(
        "--private-users",
        "--userns",
        cls=OptionalValue,
        bare="true",
        valued=("--userns",),
        default="false",
        show_default=False,
        metavar="SHIFT:COUNT",
        type=_PrivateUsers(),
        help="Give the pod users and groups of its own: root in it is nobody on the host. Its ids are chosen, or COUNT "
        "ones of the host from SHIFT on.",
    ),
)

volume_option = click.option(
    "-v",
    "--volume",
    metavar="NAME,kind=KIND,...",
    multiple=True,
    help="Storage that apps can mount; repeatable. With kind=host,source=PATH it is a path of the host, with "
    "kind=named[,source=VOLUME] a volume that outlives the pod (see `minit volume`), with kind=image,source=IMAGE the "
    "files of an image, with "
    "kind=empty[,mode=M][,uid=N][,gid=N] a new directory of the pod; all take readOnly=B and recursive=B. Docker's "
    "VOLUME:TARGET[:ro] and PATH:TARGET[:ro] mount it in all apps, too; PATH may begin with ./, and "
    "TARGET alone is a new directory.",
)

environment_file_option = click.option(
    "--set-env-file",
    "--env-file",
    metavar="FILE",
    multiple=True,
    type=click.Path(path_type=Path),
    help="File with a NAME=VALUE for all apps in each line.",
)

pid_option = click.option(
    "--pid",
    type=click.Choice(["host", "private"]),
    help="PID namespace of the pod: with host it has none, and its apps see and signal the processes of the host.",
)

prepare_options = in_order(
    stage1_options,
    pid_option,
    click.option(
        "--pod-manifest",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Use this pod manifest instead of images and options for apps.",
    ),
    volume_option,
    click.option(
        "--port",
        "--publish",
        "-p",
        metavar=_PORT_FORM,
        multiple=True,
        help="Port of the host for a port of the pod, by number, or for one of an app, by its name; repeatable.",
    ),
    click.option(
        "--network-alias",
        metavar="[NETWORK:]NAME",
        multiple=True,
        help="Further name by which pods on the pod's networks find it; repeatable.",
    ),
    click.option(
        "--set-env", metavar="NAME=VALUE", multiple=True, help="Environment variable of all apps; repeatable."
    ),
    environment_file_option,
    click.option(
        "--tmpfs",
        metavar="PATH[:OPTIONS]",
        multiple=True,
        help="File system in memory for all apps, with size=BYTES and mode=MODE if need be; repeatable.",
    ),
    pull_policy_option(PullPolicy.NEW, "--pull"),
    image_arch_option,
    click.option(
        "--inherit-env",
        is_flag=True,
        help="Give all apps minit's own environment, where they set nothing, but for the words of a service manager.",
    ),
    quiet_option,
)

background_options = in_order(
    click.option("--detach", "-d", is_flag=True, help="Return when the pod is ready, and print its UUID."),
    click.option("--rm", "removed", is_flag=True, help="Remove the pod when it ends."),
)

name_options = in_order(
    click.option("--hostname", metavar="NAME", help="Host name of the pod.  [default: rkt-UUID]"),
    click.option(
        "--dns",
        metavar="IP,...|host|none",
        multiple=True,
        help="Name servers of the apps, what the host has, or what the images have; repeatable.  [default: what a "
        "network says, or the host's if the pod has a way to them]",
    ),
    click.option("--dns-search", metavar="DOMAIN", multiple=True, help="Domain to search for names; repeatable."),
    click.option(
        "--dns-opt", "--dns-option", metavar="OPTION", multiple=True, help="Option of resolv.conf; repeatable."
    ),
    click.option("--dns-domain", "--domainname", metavar="DOMAIN", help="Domain of the pod, for resolv.conf."),
    click.option(
        "--hosts-entry",
        "--add-host",
        metavar="IP=NAME,...|host",
        multiple=True,
        help="Line of the apps' /etc/hosts, or the host's own file; repeatable.",
    ),
)

_NETWORKS = (
    "Networks, separated by commas: names of configured ones, each with arguments if need be (NAME:IP=ADDRESS), or "
    "`all` of them; `none` for `lo` alone; `host` for that of the host."
)

required_network_option = click.option(
    "--net", multiple=True, metavar="LIST", help=f"{_NETWORKS}  [default: {DEFAULT_NETWORK}]"
)
"""As rkt's `app sandbox` has it: its value may be the next word, and is never left out."""

ipc_option = click.option("--ipc", type=click.Choice(["auto", "private", "parent"]), help="IPC namespace of the pod.")

run_options = in_order(
    networks_option(_NETWORKS),
    name_options,
    click.option(
        "--interactive", "-i", "--tty", "-t", is_flag=True, help="Connect the terminal to the pod's only app."
    ),
    click.option("--init", is_flag=True, expose_value=False, help="Accepted for docker's sake: PID 1 of a pod reaps."),
    click.option(
        "--mds-register",
        is_flag=True,
        callback=_refuse_metadata_service,
        expose_value=False,
        help="Refused: there is no metadata service.",
    ),
    ipc_option,
)


def parse_port(flag: str, text: str) -> ExposedPort:
    """
    Return the port that `NAME:[IP:]PORT` describes, or by number that of the pod that `[IP:]PORT:PORT[/udp]` does.

    The first number is the host's. An IPv6 address stands in brackets. FlagError, naming `flag`.
    """
    by_number = _BY_NUMBER.fullmatch(text)
    if by_number is not None:
        return _port_by_number(f"{flag} {text}", by_number)
    name, separator, rest = text.partition(":")
    if not separator or not is_ac_name(name):
        raise FlagError(f'{flag}: expected {_PORT_FORM}, got "{text}"')
    address, separator, port = rest.rpartition(":")
    return ExposedPort(
        name=name,
        host_port=parse_number(f"{flag} {name}", port, 1, MAX_PORT),
        host_ip=_parse_address(f"{flag} {name}", address) if separator else None,
    )


def parse_direct_port(flag: str, text: str) -> ExposedPort:
    """
    Return the port that `NAME:PROTOCOL:PORT:HOSTIP:HOSTPORT` describes, or `[IP:]PORT:PORT[/udp]` as for parse_port.

    An IPv6 address of the first form stands in brackets or not.
    """
    by_number = _BY_NUMBER.fullmatch(text)
    if by_number is not None:
        return _port_by_number(f"{flag} {text}", by_number)
    name, _, rest = text.partition(":")
    protocol, _, rest = rest.partition(":")
    pod_port, _, rest = rest.partition(":")
    address, separator, host_port = rest.rpartition(":")
    if not separator or not is_ac_name(name):
        raise FlagError(f'{flag}: expected {_DIRECT_PORT_FORM}, got "{text}"')
    place = f"{flag} {name}"
    if protocol not in _PROTOCOLS:
        raise FlagError(f'{place}: expected the protocol tcp or udp, got "{protocol}"')
    bare = ":" in address and not address.startswith("[")
    return ExposedPort(
        name=name,
        host_port=parse_number(place, host_port, 1, MAX_PORT),
        host_ip=_parse_address(place, f"[{address}]" if bare else address),
        pod_port=Port(name=name, protocol=protocol, port=parse_number(place, pod_port, 1, MAX_PORT)),
    )


def _port_by_number(place: str, match: re.Match[str]) -> ExposedPort:
    protocol = _PROTOCOLS[0] if match["protocol"] is None else match["protocol"]
    if protocol not in _PROTOCOLS:
        raise FlagError(f'{place}: expected the protocol tcp or udp, got "{protocol}"')
    host_port, pod_port = (parse_number(place, match[side], 1, MAX_PORT) for side in ("host", "pod"))
    # A manifest names every port; only messages show this name.
    name = f"{host_port}-{pod_port}-{protocol}"
    return ExposedPort(
        name=name,
        host_port=host_port,
        host_ip=None if match["address"] is None else _parse_address(place, match["address"]),
        pod_port=Port(name=name, protocol=protocol, port=pod_port),
    )


def _parse_address(place: str, text: str) -> str:
    bracketed = text.startswith("[") and text.endswith("]")
    address = canonical_address(text[1:-1] if bracketed else text)
    if address is None or bracketed != (":" in address):
        raise FlagError(f'{place}: expected an IP address, one of IPv6 in brackets, got "{text}"')
    return address
