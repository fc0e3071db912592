"""Deciding everything about one app: what is executed, as whom, with which environment and streams."""

from __future__ import annotations

from minit.base.errors import PlanError
from minit.base.value import Value
from minit.manifest.annotations import Annotation, Place, is_unknown
from minit.manifest.app import APPARMOR_PROFILE, App
from minit.manifest.capabilities import DEFAULT, capability_names
from minit.manifest.limits import Limits
from minit.manifest.pod import RuntimeApp
from minit.manifest.seccomp import plan_no_new_privileges, plan_seccomp
from minit.plan.inputs.runflags import RunFlags
from minit.plan.inputs.switches import find_switch, is_set
from minit.plan.life.appenvironment import DEFAULT_TERM, ROOT_VARIABLES, TTY_TERM, Variables, plan_environment
from minit.plan.life.expansion import Texts
from minit.plan.life.health import HealthCheck
from minit.plan.life.hooks import HOOK_POST_START, HOOK_PRE_STOP, Hook, plan_hooks
from minit.plan.life.restart import RestartPolicy
from minit.plan.life.sockets import ListenSocket
from minit.plan.life.stopping import DEFAULT_STOPPING
from minit.plan.rights.confinement import ConfinementPlan
from minit.plan.rights.protection import Protection
from minit.plan.rights.seccompfilter import DEFAULT_GUARDS
from minit.plan.root.devicevolumes import DeviceRule
from minit.plan.root.etcfiles import AppFile
from minit.plan.root.mountoperations import SYSFS, BindTree, MountOp, app_mounts
from minit.plan.root.volumes import VolumeMount
from minit.podfiles.paths import ANNOTATION_STREAM

DEFAULT_LOG_SIZE_BYTES = 10 << 20
DEFAULT_LOG_FILES = 5
STREAM_LOG = "log"
STREAM_NULL = "null"
STREAM_CONSOLE = "console"
STREAM_STREAM = "stream"
STREAM_TTY = "tty"
STREAM_LOG_STREAM = "log+stream"
STREAM_LOG_TTY = "log+tty"
PIPE_STREAMS = (STREAM_STREAM, STREAM_LOG_STREAM)
"""The modes of a pipe that clients attach to."""
TTY_STREAMS = (STREAM_TTY, STREAM_LOG_TTY)
"""The modes of a terminal of the app's own."""
HANDLER_PRE_START = "pre-start"
HANDLER_POST_STOP = "post-stop"


class Dependency(Value):
    """An app that has to be ready before another one is started; with `completed` it has to have ended with 0."""

    app: str
    completed: bool = False

    def describe(self) -> str:
        """Return the dependency as words for --debug."""
        return f"{self.app} {'has ended well' if self.completed else 'is ready'}"


class ProcessPlan(Value):
    """
    The program of an app and its surroundings.

    `candidates` are the paths of the executable, tried in order; `search` is the path list that a message names if none
    of them exists, None if exec[0] is a path. `command` is argv[0], None for the path that was found.
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
    """The app whose present PID namespace this app joins; None with `own_pids`: the app is PID 1 of a new one."""


class ResourcePlan(Value):
    """The limits of an app and its devices."""

    limits: Limits | None = None
    """None if nobody asks for limits."""
    oom_score_adj: int | None = None
    """None if nobody asks for a value."""
    devices: tuple[DeviceRule, ...] | None = None
    """The devices that the app may use, None for all."""
    hotplug: bool = False
    """Whether devices that are volumes come and go as they do on the host."""


class StoragePlan(Value):
    """
    The mounts and files in the root of an app.

    PID 1 makes `mounts` first, then `sysfs`, `volumes` from the outer to the inner, and `files`; `protection` covers
    all of them.
    """

    mounts: tuple[MountOp, ...] = ()
    sysfs: BindTree = SYSFS
    volumes: tuple[VolumeMount, ...] = ()
    late_volumes: tuple[VolumeMount, ...] = ()
    """Devices that do not exist yet."""
    memory_volumes: tuple[VolumeMount, ...] = ()
    """Volumes that PID 1 has in the stage1 root."""
    files: tuple[AppFile, ...] = ()
    hidden_files: tuple[str, ...] = ()
    """The paths of files of minit that volumes replace."""
    protection: Protection = Protection()
    read_only_root: bool = False
    """Whether the rest of the root is made read-only at last."""


class StreamsPlan(Value):
    """The standard streams of an app and its log."""

    stdin: str = STREAM_NULL
    stdout: str = STREAM_LOG
    stderr: str = STREAM_LOG
    log_size_bytes: int = DEFAULT_LOG_SIZE_BYTES
    """The size of each file of the log, 0 for any size."""
    log_files: int = DEFAULT_LOG_FILES
    """How many files the log has at most."""
    log_path: str | None = None
    """The path of the log in the host's directory for logs, None if the log is in the pod."""
    kubernetes_log: str | None = None
    """The name of the app's file in the log mode k8s-plain."""
    lost_output_fails: bool = True
    """Whether the pod has failed if output of the app was lost."""

    @property
    def has_console(self) -> bool:
        """Tell whether any stream is the pod's console."""
        return STREAM_CONSOLE in (self.stdin, self.stdout, self.stderr)

    @property
    def has_tty(self) -> bool:
        """Tell whether any stream is a terminal of the app's own."""
        return any(mode in TTY_STREAMS for mode in (self.stdin, self.stdout, self.stderr))

    @property
    def is_attachable(self) -> bool:
        """Tell whether clients can attach to any stream."""
        return self.has_tty or any(mode in PIPE_STREAMS for mode in (self.stdin, self.stdout, self.stderr))


class LifePlan(Value):
    """When an app starts, is ready, is healthy, starts again and stops, and the programs that run beside the app."""

    after: tuple[Dependency, ...] = ()
    """The apps that come before this one."""
    notifies: bool = False
    """Whether the app tells by a socket that it is ready."""
    notify_fd: int | None = None
    """The descriptor by which the app tells that it is ready; without this and `notifies` it is ready once executed."""
    health: tuple[HealthCheck, ...] = ()
    restart: RestartPolicy | None = None
    starts_again: bool = False
    """Whether the app may start once more after its end, by `restart` or because somebody asks for it."""
    is_sidecar: bool = False
    """Whether the pod ends although this app still runs."""
    stop_signal: int = DEFAULT_STOPPING.signal
    stop_grace_seconds: float = DEFAULT_STOPPING.grace_seconds
    pre_start: tuple[str, ...] | None = None
    """The arguments of an event handler, None without one."""
    post_stop: tuple[str, ...] | None = None
    post_start: Hook | None = None
    """A hook while the app runs, None without one."""
    pre_stop: Hook | None = None

    @property
    def is_joined_later(self) -> bool:
        """Tell whether PID 1 makes processes for its control groups after the first: handlers, or another start."""
        return self.starts_again or self.has_handlers

    @property
    def has_handlers(self) -> bool:
        """Tell whether PID 1 runs other programs for it, event handlers or hooks."""
        return bool(self.handlers) or any(hook.sleep_seconds is None for hook in self.hooks.values())

    @property
    def tells_readiness(self) -> bool:
        """Tell whether it says itself when it is ready."""
        return self.notifies or self.notify_fd is not None

    @property
    def handlers(self) -> dict[str, tuple[str, ...]]:
        """The arguments of the event handlers there are, by name."""
        both = {HANDLER_PRE_START: self.pre_start, HANDLER_POST_STOP: self.post_stop}
        return {name: arguments for name, arguments in both.items() if arguments is not None}

    @property
    def hooks(self) -> dict[str, Hook]:
        """The hooks there are, by name."""
        both = {HOOK_POST_START: self.post_start, HOOK_PRE_STOP: self.pre_stop}
        return {name: hook for name, hook in both.items() if hook is not None}


class AppPlan(Value):
    """Everything decided about one app before any effect."""

    name: str
    process: ProcessPlan
    confinement: ConfinementPlan = ConfinementPlan()
    resources: ResourcePlan = ResourcePlan()
    storage: StoragePlan = StoragePlan()
    streams: StreamsPlan = StreamsPlan()
    life: LifePlan = LifePlan()

    def _describe_guards(self) -> str:
        missing = sorted(DEFAULT_GUARDS - self.confinement.guards)
        return f", without the guards {' '.join(missing)}" if missing else ""

    def describe(self) -> list[str]:
        """Return the decisions as lines for --debug."""
        process, confinement, resources = self.process, self.confinement, self.resources
        storage, streams, life = self.storage, self.streams, self.life
        lines = [
            f"app {self.name}: exec {' or '.join(process.candidates)} {list(process.arguments)}",
            f"app {self.name}: uid {confinement.uid} gid {confinement.gid}"
            f" groups {list(confinement.supplementary_gids)} cwd {process.working_directory}"
            f"{', no_new_privs' if confinement.sheds_privileges else ''}",
            f"app {self.name}: {'all system calls' if confinement.seccomp is None else confinement.seccomp.describe()}"
            f"{self._describe_guards()}",
            f"app {self.name}: stdin {streams.stdin} stdout {streams.stdout} stderr {streams.stderr}",
            f"app {self.name}: stopped by signal {life.stop_signal}, killed after {life.stop_grace_seconds:g} s",
        ]
        lines += [] if confinement.profile is None else [f"app {self.name}: {confinement.profile.describe()}"]
        rules = (
            "all" if resources.devices is None else ", ".join(rule.describe() for rule in resources.devices)
        ) or "none"
        lines.append(f"app {self.name}: devices {rules}{', as they come and go' if resources.hotplug else ''}")
        if process.own_pids:
            where = (
                "PID 1 of a namespace of its own" if process.pids_of is None else f"sees processes of {process.pids_of}"
            )
            lines.append(f"app {self.name}: {where}")
        if confinement.bounding != DEFAULT:
            held = "any" if confinement.bounding is None else " ".join(capability_names(confinement.bounding)) or "none"
            lines.append(f"app {self.name}: capabilities {held}")
        if resources.oom_score_adj is not None:
            lines.append(f"app {self.name}: oom_score_adj {resources.oom_score_adj}")
        if resources.limits is not None:
            lines.append(f"app {self.name}: limits {resources.limits.describe()}")
        lines += [f"app {self.name}: socket {socket.name} on {socket.describe()}" for socket in process.sockets]
        lines += [f"app {self.name}: {name} {list(arguments)}" for name, arguments in life.handlers.items()]
        lines += [f"app {self.name}: {name} {hook.describe()}" for name, hook in life.hooks.items()]
        lines += [f"app {self.name}: after {dependency.describe()}" for dependency in life.after]
        lines += [] if life.restart is None else [f"app {self.name}: restarts {life.restart.describe()}"]
        lines += [f"app {self.name}: health {check.describe()}" for check in life.health]
        lines += [f"app {self.name}: {operation.describe()}" for operation in storage.mounts]
        volumes = (*storage.volumes, *storage.late_volumes, *storage.memory_volumes)
        lines.append(f"app {self.name}: {storage.sysfs.describe()}{', but below volumes there' if volumes else ''}")
        lines += [f"app {self.name}: {volume.describe()}" for volume in volumes]
        lines += [f"app {self.name}: {file.describe()}" for file in storage.files]
        lines += [f"app {self.name}: {line}" for line in storage.protection.describe()]
        return lines + ([f"app {self.name}: root read-only"] if storage.read_only_root else [])


def plan_app(
    runtime: RuntimeApp,
    app: App,
    flags: RunFlags,
    terminal_type: str | None = None,
    user_variables: Variables = ROOT_VARIABLES,
    *,
    has_queues: bool = True,
) -> tuple[AppPlan, list[str]]:
    """
    Return the spec of an app and the warnings to show; PlanError for what it cannot have.

    Fields that are decided elsewhere still have their defaults: ids, volumes, files, protected paths, sockets,
    isolation, and how it is stopped. `terminal_type` is the caller's TERM, `user_variables` name the app's user.
    `has_queues` is as in HostFacts.
    """
    name = runtime.name
    _refuse_unbuilt(runtime, app)
    stdin, stdout, stderr = (_plan_stream(runtime, stream, flags) for stream in ("stdin", "stdout", "stderr"))
    has_console = STREAM_CONSOLE in (stdin, stdout, stderr)
    term = terminal_type or DEFAULT_TERM if has_console else None
    if term is None and any(mode in TTY_STREAMS for mode in (stdin, stdout, stderr)):
        term = TTY_TERM
    _refuse_nul(name, app)
    handlers = _plan_handlers(name, app)
    working_directory = app.working_directory or "/"
    candidates, search = plan_executable(name, app, working_directory)
    hooks = plan_hooks(runtime, lambda command: _find_candidates(command, app, working_directory))
    seccomp, warnings = plan_seccomp(name, app.isolators)
    no_new_privileges = find_switch(runtime, Annotation.NO_NEW_PRIVILEGES)
    return (
        AppPlan(
            name=name,
            process=ProcessPlan(
                candidates=candidates,
                command=app.exec[0] if is_set(runtime, Annotation.PLAIN_ENVIRONMENT) else None,
                search=search,
                arguments=app.exec[1:],
                environment=plan_environment(
                    name, app.environment, term, user_variables, plain=is_set(runtime, Annotation.PLAIN_ENVIRONMENT)
                ),
                working_directory=working_directory,
            ),
            confinement=ConfinementPlan(
                supplementary_gids=app.supplementary_gids,
                no_new_privileges=plan_no_new_privileges(name, app.isolators) or no_new_privileges is True,
                may_gain_privileges=no_new_privileges is False,
                seccomp=None if flags.disable_seccomp else seccomp,
            ),
            streams=StreamsPlan(stdin=stdin, stdout=stdout, stderr=stderr),
            storage=StoragePlan(
                mounts=app_mounts(console=has_console, private_users=bool(flags.private_users), has_queues=has_queues),
                read_only_root=runtime.read_only_root_fs,
            ),
            life=LifePlan(
                pre_start=handlers.get(HANDLER_PRE_START),
                post_stop=handlers.get(HANDLER_POST_STOP),
                post_start=hooks.get(HOOK_POST_START),
                pre_stop=hooks.get(HOOK_PRE_STOP),
            ),
        ),
        warnings,
    )


def plan_executable(name: str, app: App, working_directory: str) -> tuple[tuple[str, ...], str | None]:
    """
    Return the paths at which the executable may be, in order, and the search list if one was used.

    rkt's rule: an absolute path as it is, one with a slash below the working directory, a bare name in the app's own
    PATH, or without one in the working directory, /bin and /usr/bin (not in rkt's default PATH).
    """
    if not app.exec or not app.exec[0]:
        raise PlanError(f'app "{name}" has no executable: its image has an empty "exec" (try --exec=BINARY)')
    return _find_candidates(app.exec[0], app, working_directory)


def _find_candidates(command: str, app: App, working_directory: str) -> tuple[tuple[str, ...], str | None]:
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


def _plan_stream(runtime: RuntimeApp, stream: str, flags: RunFlags) -> str:
    # Anything unrecognised is the log, for stdin null, as in rkt.
    mode = "interactive" if flags.interactive else runtime.annotation(ANNOTATION_STREAM + stream)
    if mode == "interactive":
        return STREAM_CONSOLE
    if mode in (STREAM_STREAM, STREAM_TTY) or (stream != "stdin" and mode in (STREAM_LOG_STREAM, STREAM_LOG_TTY)):
        return mode
    return STREAM_NULL if stream == "stdin" or mode == "null" else STREAM_LOG


def _plan_handlers(name: str, app: App) -> dict[str, tuple[str, ...]]:
    for handler in app.event_handlers:
        command = handler.exec[0] if handler.exec else ""
        # No search, neither in the PATH nor below the working directory (stage1 contract 7.5).
        if not command.startswith("/"):
            raise PlanError(f'app "{name}": event handler {handler.name}: expected an absolute path, got "{command}"')
    return {handler.name: handler.exec for handler in app.event_handlers}


def _refuse_nul(name: str, app: App) -> None:
    # JSON can say it; no argument, variable or path of a program can hold it.
    for what, texts in (
        ("exec", app.exec),
        ("environment", (value for _, value in app.environment)),
        ("workingDirectory", (app.working_directory,)),
        *((f"event handler {handler.name}", handler.exec) for handler in app.event_handlers),
    ):
        if any("\0" in text for text in texts):
            raise PlanError(f'app "{name}": {what} holds a NUL character')


def _refuse_unbuilt(runtime: RuntimeApp, app: App) -> None:
    """Raise PlanError for anything that would have an effect which is not built."""
    prefix = f'app "{runtime.name}": '
    for isolator in app.isolators:
        if isolator.name == APPARMOR_PROFILE:
            raise PlanError(f"{prefix}isolator {isolator.name} is not supported yet")
    for annotation, value in runtime.annotations:
        if is_unknown(annotation, Place.APP):
            raise PlanError(f'{prefix}unknown annotation "{annotation}"')
        check_keep_logs(annotation, value, prefix)


def check_keep_logs(annotation: str, value: str, where: str) -> None:
    """Raise PlanError for a value of minit/keep-logs that it cannot have; it is looked at when the app is removed."""
    if annotation == Annotation.KEEP_LOGS and value not in ("true", "false"):
        raise PlanError(f'{where}{annotation}: expected true or false, got "{value}"')
