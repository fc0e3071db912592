"""The process of an app: its program, environment, sockets and PID namespace."""

from __future__ import annotations

from minit.base.errors import PlanError
from minit.base.value import Value
from minit.manifest.annotations import Annotation
from minit.manifest.app import App
from minit.manifest.names import is_ac_name
from minit.manifest.pod import PodManifest
from minit.plan.inputs.switches import is_set
from minit.plan.life.appenvironment import (
    DEFAULT_TERM,
    TTY_TERM,
    Variables,
    plan_environment,
    user_variables,
    with_metadata,
)
from minit.plan.life.expansion import Texts, plan_expansion
from minit.plan.life.sockets import ListenSocket, plan_sockets
from minit.plan.loadedpod import AppInput
from minit.plan.networks.podnetwork import is_contained
from minit.plan.root.mountoperations import PROC
from minit.plan.streams import StreamsPlan

HANDLER_PRE_START = "pre-start"
HANDLER_POST_STOP = "post-stop"

_OF_POD, _OF_APP, _OF_OTHER, _OF_HOST = "pod", "app", "app:", "host"
_HOST_LOOPBACK = "127.0.0.1"


class ProcessPlan(Value):
    """
    The program of an app and its surroundings.

    `candidates` are the paths of the executable, tried in order; `search` is the path list for the message if no
    candidate exists, None if exec[0] is a path. `command` is argv[0], None for the found path.
    """

    candidates: tuple[str, ...]
    command: str | None = None
    search: str | None = None
    finds_executable_late: bool = False
    """Whether the executable may be missing when the app is added to a mutable pod."""
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    expansion: Texts = ()
    """The texts in arguments and variables that stand for addresses of the pod."""
    working_directory: str = "/"
    makes_working_directory: bool = False
    """Whether a missing working directory is made."""
    sockets: tuple[ListenSocket, ...] = ()
    """The sockets that are open when the program is executed."""
    own_pids: bool = False
    """Whether the app is in another PID namespace than that of the pod."""
    pids_of: str | None = None
    """The app whose present PID namespace is joined; None with `own_pids`: the app is PID 1 of a new namespace."""
    has_init: bool = False
    """With `own_pids`, whether PID 1 of the new namespace is a process of ours, in the place of control groups."""

    def describe(self) -> list[str]:
        """Return the program, its sockets and its PID namespace as lines for --debug."""
        lines = [f"exec {' or '.join(self.candidates)} {list(self.arguments)}"]
        if self.own_pids:
            own = f"{'behind ' if self.has_init else ''}PID 1 of a namespace of its own"
            lines.append(own if self.pids_of is None else f"sees processes of {self.pids_of}")
        return [*lines, *(f"socket {socket.name} on {socket.describe()}" for socket in self.sockets)]


def plan_process(given: AppInput, streams: StreamsPlan, uid: int) -> tuple[ProcessPlan, list[str]]:
    """Return the process of an app with this user, and the warnings to show; PlanError for what cannot be."""
    runtime, app, pod = given.runtime, given.app, given.pod
    _refuse_nul(given.name, app)
    working_directory = app.working_directory or "/"
    candidates, search = plan_executable(given.name, app, working_directory)
    own_pids, pids_of = _plan_pid_namespace(given)
    in_host_network = not is_contained(pod.flags.networks)
    sockets, warnings = plan_sockets(pod.manifest, runtime, app, in_host_network=in_host_network)
    process = ProcessPlan(
        candidates=candidates,
        command=app.exec[0] if is_set(runtime, Annotation.PLAIN_ENVIRONMENT) else None,
        search=search,
        finds_executable_late=is_set(runtime, Annotation.LATE_EXECUTABLE),
        arguments=app.exec[1:],
        environment=_plan_environment(given, streams, uid),
        expansion=plan_expansion(runtime),
        working_directory=working_directory,
        makes_working_directory=is_set(runtime, Annotation.MAKE_WORKING_DIRECTORY),
        sockets=sockets,
        own_pids=own_pids,
        pids_of=pids_of,
        has_init=pod.facts.delegated_groups is False,
    )
    return process, warnings


def _plan_environment(given: AppInput, streams: StreamsPlan, uid: int) -> Variables:
    """Return the variables of an app, with rkt's metadata service if the app finds it by the network of the host."""
    flags = given.pod.flags
    term = given.pod.facts.terminal_type or DEFAULT_TERM if streams.has_console else None
    if term is None and streams.has_tty:
        term = TTY_TERM
    variables = user_variables(given.app.user, uid, given.lookups.passwd)
    plain = is_set(given.runtime, Annotation.PLAIN_ENVIRONMENT)
    environment = plan_environment(given.name, given.app.environment, term, variables, plain=plain)
    if not flags.mds_token or is_contained(flags.networks):
        return environment
    return with_metadata(environment, flags.mds_token, _HOST_LOOPBACK)


def plan_executable(name: str, app: App, working_directory: str) -> tuple[tuple[str, ...], str | None]:
    """
    Return the paths of the executable, in order, and the search list if a list was used.

    rkt's rule: an absolute path as given, a path with a slash below the working directory, a bare name in the app's own
    PATH, or without a PATH in the working directory, /bin and /usr/bin (not in rkt's default PATH).
    """
    if not app.exec or not app.exec[0]:
        raise PlanError(f'app "{name}" has no executable: its image has an empty "exec" (try --exec=BINARY)')
    return find_candidates(app.exec[0], app, working_directory)


def find_candidates(command: str, app: App, working_directory: str) -> tuple[tuple[str, ...], str | None]:
    """Return the paths of a command in an app, in order, and the search list if the command is a bare name."""
    if command.startswith("/"):
        return (command,), None
    if "/" in command:
        return (_join(working_directory, command),), None
    path = dict(app.environment).get("PATH")
    entries = [working_directory, "/bin", "/usr/bin"] if path is None else path.split(":")
    directories = [_join(working_directory, entry) for entry in entries]
    return tuple(_join(directory, command) for directory in directories), ":".join(directories)


def _join(directory: str, path: str) -> str:
    # Lexical, as Go's filepath.Join: "." and ".." are resolved without looking at symlinks.
    parts: list[str] = []
    for part in (path if path.startswith("/") else f"{directory}/{path}").split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def _refuse_nul(name: str, app: App) -> None:
    # JSON can hold a NUL; no argument, variable or path of a program can.
    for what, texts in (
        ("exec", app.exec),
        ("environment", (value for _, value in app.environment)),
        ("workingDirectory", (app.working_directory,)),
        *((f"event handler {handler.name}", handler.exec) for handler in app.event_handlers),
    ):
        if any("\0" in text for text in texts):
            raise PlanError(f'app "{name}": {what} holds a NUL character')


def plan_host_pids(manifest: PodManifest, *, private_users: bool, is_of_user: bool) -> bool:
    """
    Return whether a pod has no own PID namespace; PlanError with private users, for a user without root, or for an app
    with an own namespace.
    """
    if manifest.annotation(Annotation.PID_NAMESPACE) != _OF_HOST:
        return False
    where = f"annotation {Annotation.PID_NAMESPACE}: {_OF_HOST}"
    if private_users:
        raise PlanError(f"{where}: not with --private-users, whose root may not mount the /proc of the host")
    if is_of_user:
        raise PlanError(f"{where}: needs root: a user may not mount the /proc of the host (see docs/rootless.md)")
    for runtime in manifest.apps:
        if runtime.annotation(Annotation.PID_NAMESPACE) not in (None, _OF_HOST):
            raise PlanError(f'{where}: app "{runtime.name}" asks for another one')
    return True


def _plan_pid_namespace(given: AppInput) -> tuple[bool, str | None]:
    """
    Return whether an app has another PID namespace than the pod, by an annotation of either, and whose.

    PlanError for an app that cannot have another namespace: each start then gets a new /proc and new mounts. The
    namespace of another app can only be joined in a mutable pod, where the other app runs already.
    """
    runtime, manifest = given.runtime, given.pod.manifest
    of_app = runtime.annotation(Annotation.PID_NAMESPACE)
    value = of_app or manifest.annotation(Annotation.PID_NAMESPACE) or _OF_POD
    where = f'app "{runtime.name}": {Annotation.PID_NAMESPACE}'
    if manifest.annotation(Annotation.PID_NAMESPACE) == _OF_HOST:
        return False, None
    if value == _OF_HOST:
        raise PlanError(f"{where}: {_OF_HOST} is for all apps of a pod, by an annotation of that")
    other = value.removeprefix(_OF_OTHER) if of_app and value.startswith(_OF_OTHER) else None
    if value not in (_OF_POD, _OF_APP) and (other is None or not is_ac_name(other)):
        raise PlanError(f'{where}: expected {_OF_POD}, {_OF_APP} or, of an app, {_OF_OTHER}NAME, got "{value}"')
    has_init = given.pod.facts.delegated_groups is False
    if has_init and other is not None:
        raise PlanError(f"{where}: not without control groups: each app has a namespace")
    if value == _OF_POD and not has_init:
        return False, None
    if other == runtime.name:
        raise PlanError(f"{where}: that is the app itself")
    if other is not None and not given.pod.flags.mutable:
        raise PlanError(f"{where}: only in a mutable pod does another app run when one starts")
    kind = _kind_for_namespace_of_pod(given, has_init=has_init)
    if kind is not None and has_init:
        reason = "needs control groups, and none are delegated to you (see docs/rootless.md)"
        raise PlanError(f'app "{runtime.name}": {kind} {reason}')
    if kind is not None:
        raise PlanError(f"{where}: {kind} has that of its pod")
    return True, other


def _kind_for_namespace_of_pod(given: AppInput, *, has_init: bool) -> str | None:
    """Return what makes an app one that must be in the PID namespace of its pod; None for an app that need not."""
    if given.has_hotplug:
        return "an app with minit/hotplug"
    if not has_init and any(handler.name == HANDLER_POST_STOP for handler in given.app.event_handlers):
        return "an app with a post-stop handler, which comes after its end,"
    for volume in given.volumes:
        if f"{volume.target}/".startswith(f"{PROC.target}/"):
            return f"{volume.place}: an app with a volume at {volume.target}"
    return None
