"""
The `app` section, which a pod manifest and an image manifest share: program, user, and all that the program gets.

The values of isolators are left to the planner; here only the list of isolators is checked.
"""

from __future__ import annotations

from minit.base.value import Value
from minit.manifest.names import is_variable_name
from minit.manifest.reader import Node

MAX_PORT = 65535
MAX_ID = 0xFFFFFFFE  # 0xFFFFFFFF is chown(2)'s and setresuid(2)'s "leave it as it is"

# The isolators with an effect, and two without an effect in rkt's stage1.
MEMORY, CPU, CPU_SHARES = "resource/memory", "resource/cpu", "os/linux/cpu-shares"
OOM_SCORE_ADJ = "os/linux/oom-score-adj"
CAPABILITIES_RETAIN, CAPABILITIES_REMOVE = "os/linux/capabilities-retain-set", "os/linux/capabilities-remove-set"
SECCOMP_RETAIN, SECCOMP_REMOVE = "os/linux/seccomp-retain-set", "os/linux/seccomp-remove-set"
NO_NEW_PRIVILEGES = "os/linux/no-new-privileges"
APPARMOR_PROFILE = "os/linux/apparmor-profile"
SELINUX_CONTEXT, SYSCTL = "os/linux/selinux-context", "os/unix/sysctl"

_SECCOMP_SETS = (SECCOMP_RETAIN, SECCOMP_REMOVE)
_SINGLE_ISOLATORS = (*_SECCOMP_SETS, CPU_SHARES, OOM_SCORE_ADJ, SELINUX_CONTEXT, SYSCTL)


class EventHandler(Value):
    """A program to run as root around the app's life; `name` is `pre-start` or `post-stop`."""

    name: str
    exec: tuple[str, ...]


class MountPoint(Value):
    """A place where the app expects a volume; an empty `path` is for the planner to refuse."""

    name: str
    path: str
    read_only: bool = False


class Port(Value):
    """`count` consecutive ports the app listens on, from `port` on."""

    name: str
    protocol: str
    port: int
    count: int = 1
    socket_activated: bool = False


class Isolator(Value):
    """A limit or privilege by its appc name, with its unchanged JSON value."""

    name: str
    value: object


class App(Value):
    """
    The program of an app and its surroundings.

    `exec` may be empty, since stage0 may add it; an empty `working_directory` means `/`. appc spec/aci.md.
    """

    exec: tuple[str, ...]
    user: str
    group: str
    supplementary_gids: tuple[int, ...] = ()
    working_directory: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    event_handlers: tuple[EventHandler, ...] = ()
    mount_points: tuple[MountPoint, ...] = ()
    ports: tuple[Port, ...] = ()
    isolators: tuple[Isolator, ...] = ()
    user_annotations: tuple[tuple[str, str], ...] = ()
    user_labels: tuple[tuple[str, str], ...] = ()


def read_app(node: Node) -> App:
    """Read an `app` section."""
    return App(
        exec=node["exec"].each(Node.string),
        user=node["user"].non_empty(),
        group=node["group"].non_empty(),
        supplementary_gids=node["supplementaryGIDs"].each(read_id),
        working_directory=node["workingDirectory"].optional(_read_working_directory) or "",
        environment=node["environment"].each_named("environment variable", _read_variable),
        event_handlers=node["eventHandlers"].each_named("event handler", _read_event_handler),
        mount_points=node["mountPoints"].each(_read_mount_point),
        ports=node["ports"].each(read_port),
        isolators=read_isolators(node["isolators"]),
        user_annotations=node["userAnnotations"].string_map(),
        user_labels=node["userLabels"].string_map(),
    )


def read_isolators(node: Node) -> tuple[Isolator, ...]:
    """Read a list of isolators, some of which appc allows only once."""
    isolators = node.each(_read_isolator)
    names = [isolator.name for isolator in isolators]
    for name in _SINGLE_ISOLATORS:
        if names.count(name) > 1:
            raise node.error(f"at most one {name}", str(names.count(name)))
    if all(name in names for name in _SECCOMP_SETS):
        raise node.error("at most one seccomp isolator", " and ".join(_SECCOMP_SETS))
    return isolators


def read_id(node: Node) -> int:
    """Read a user or group number."""
    return node.integer(0, MAX_ID)


def read_port(node: Node) -> Port:
    """Read a port of an app."""
    port = read_port_number(node["port"])
    return Port(
        name=node["name"].ac_name(),
        protocol=node["protocol"].non_empty(),
        port=port,
        # Go writes an unset count as 0.
        count=node["count"].optional(lambda count: count.integer(0, MAX_PORT + 1 - port)) or 1,
        socket_activated=node["socketActivated"].optional(Node.boolean) or False,
    )


def read_port_number(node: Node) -> int:
    """Read the number of a port."""
    return node.integer(1, MAX_PORT)


def _read_working_directory(node: Node) -> str:
    return node.matching(lambda path: path[:1] in ("", "/"), "an absolute path or an empty string")


def _read_variable(node: Node) -> tuple[str, str]:
    name = node["name"].matching(is_variable_name, "the name of an environment variable")
    return name, node["value"].string()


def _read_event_handler(node: Node) -> EventHandler:
    return EventHandler(
        name=node["name"].one_of("pre-start", "post-stop"),
        exec=node["exec"].each(Node.string),
    )


def _read_mount_point(node: Node) -> MountPoint:
    return MountPoint(
        name=node["name"].ac_name(),
        path=node["path"].optional(Node.string) or "",
        read_only=node["readOnly"].optional(Node.boolean) or False,
    )


def _read_isolator(node: Node) -> Isolator:
    return Isolator(name=node["name"].ac_identifier(), value=node["value"].raw())
