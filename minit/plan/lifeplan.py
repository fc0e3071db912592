"""The life of an app: its order among the apps, readiness, health, restarts, hooks and stop."""

from __future__ import annotations

from collections.abc import Mapping

from minit.base.errors import PlanError
from minit.base.goflags import BOOLEANS
from minit.base.value import Value
from minit.manifest.annotations import Annotation
from minit.manifest.app import App
from minit.manifest.image import ImageManifest
from minit.manifest.pod import RuntimeApp
from minit.plan.inputs.switches import is_set
from minit.plan.life.health import HealthCheck, plan_health
from minit.plan.life.hooks import HOOK_POST_START, HOOK_PRE_STOP, Hook, plan_hooks
from minit.plan.life.restart import ALWAYS, RestartPolicy, plan_restart
from minit.plan.life.stopping import DEFAULT_STOPPING, plan_pod_grace, plan_stopping
from minit.plan.loadedpod import AppInput
from minit.plan.process import HANDLER_POST_STOP, HANDLER_PRE_START, ProcessPlan, find_candidates
from minit.podfiles.paths import ANNOTATION_NOTIFY

_COMPLETED = "completed"

NOTIFY_SOCKET = "/run/systemd/notify"
"""The socket's path in an app, the same as with rkt's stage1."""

_FIRST_FD = 3
# An app may have opened files up to 1024 at a time, unless its limits say otherwise.
_LAST_FD = 1023


class Dependency(Value):
    """An app that has to be ready before another app starts; with `completed` a successful end is needed."""

    app: str
    completed: bool = False

    def describe(self) -> str:
        """Return the dependency as words for --debug."""
        return f"{self.app} {'has ended well' if self.completed else 'is ready'}"


class LifePlan(Value):
    """When an app starts, is ready, is healthy, starts again and stops, and the programs that run beside the app."""

    after: tuple[Dependency, ...] = ()
    """The apps to wait for."""
    notifies: bool = False
    """Whether the app tells by a socket that it is ready."""
    notify_fd: int | None = None
    """The descriptor for telling readiness; without a descriptor or `notifies` an executed app is ready."""
    health: tuple[HealthCheck, ...] = ()
    restart: RestartPolicy | None = None
    starts_again: bool = False
    """Whether the app may start once more after an end, by `restart` or on request."""
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
        """Tell whether PID 1 makes later processes in the app's control groups: handlers, or another start."""
        return self.starts_again or self.has_handlers

    @property
    def has_handlers(self) -> bool:
        """Tell whether PID 1 runs event handlers or hooks beside the app."""
        return bool(self.handlers) or any(hook.sleep_seconds is None for hook in self.hooks.values())

    @property
    def tells_readiness(self) -> bool:
        """Tell whether the app itself tells readiness."""
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

    def describe(self) -> list[str]:
        """Return the decisions as lines for --debug."""
        return [
            f"stopped by signal {self.stop_signal}, killed after {self.stop_grace_seconds:g} s",
            *(f"{name} {list(arguments)}" for name, arguments in self.handlers.items()),
            *(f"{name} {hook.describe()}" for name, hook in self.hooks.items()),
            *(f"after {dependency.describe()}" for dependency in self.after),
            *(() if self.restart is None else (f"restarts {self.restart.describe()}",)),
            *(f"health {check.describe()}" for check in self.health),
        ]


def plan_life(given: AppInput, process: ProcessPlan, *, has_console: bool) -> LifePlan:
    """Return the life of an app; PlanError or ManifestError for what cannot be."""
    runtime, image, pod = given.runtime, given.image, given.pod
    handlers = _plan_handlers(given.name, given.app)
    hooks = plan_hooks(runtime, lambda command: find_candidates(command, given.app, process.working_directory))
    stopping = plan_stopping(runtime, image, plan_pod_grace(pod.manifest))
    notifies, notify_fd = plan_readiness(runtime, image, len(process.sockets))
    restart = plan_restart(runtime, pod.manifest, has_console=has_console)
    return LifePlan(
        after=plan_after(runtime),
        notifies=notifies,
        notify_fd=notify_fd,
        health=plan_health(runtime, can_be_removed=pod.flags.mutable and not pod.joined),
        restart=restart,
        starts_again=pod.flags.mutable or restart is not None,
        is_sidecar=is_set(runtime, Annotation.SIDECAR),
        stop_signal=stopping.signal,
        stop_grace_seconds=stopping.grace_seconds,
        pre_start=handlers.get(HANDLER_PRE_START),
        post_stop=handlers.get(HANDLER_POST_STOP),
        post_start=hooks.get(HOOK_POST_START),
        pre_stop=hooks.get(HOOK_PRE_STOP),
    )


def _plan_handlers(name: str, app: App) -> dict[str, tuple[str, ...]]:
    for handler in app.event_handlers:
        command = handler.exec[0] if handler.exec else ""
        # No search, neither in the PATH nor below the working directory (stage1 contract 7.5).
        if not command.startswith("/"):
            raise PlanError(f'app "{name}": event handler {handler.name}: expected an absolute path, got "{command}"')
    return {handler.name: handler.exec for handler in app.event_handlers}


def plan_after(runtime: RuntimeApp) -> tuple[Dependency, ...]:
    """Return the apps that an app waits for; PlanError unless the annotation is a list of names with commas."""
    text = runtime.annotation(Annotation.AFTER)
    if text is None:
        return ()
    dependencies = []
    for word in text.split(","):
        name, colon, what = word.strip().partition(":")
        if not name or (colon and what != _COMPLETED):
            expected = f'expected names of apps, separated by commas, each perhaps followed by ":{_COMPLETED}"'
            raise PlanError(f'app "{runtime.name}": annotation {Annotation.AFTER}: {expected}, got "{text}"')
        dependencies.append(Dependency(app=name, completed=bool(colon)))
    return tuple(dependencies)


def check_order(lives: Mapping[str, LifePlan]) -> None:
    """Raise PlanError if an app of a whole pod waits for an unknown app, or in a circle."""
    waits_for = {name: [dependency.app for dependency in life.after] for name, life in lives.items()}
    for name, others in waits_for.items():
        for other in others:
            if other not in waits_for:
                raise PlanError(f'app "{name}": annotation {Annotation.AFTER}: no app "{other}" in this pod')
    always = {name for name, life in lives.items() if life.restart is not None and life.restart.condition == ALWAYS}
    for name, life in lives.items():
        for dependency in life.after:
            if dependency.completed and dependency.app in always:
                reason = f'app "{dependency.app}" never completes, as it is always started again'
                raise PlanError(f'app "{name}": annotation {Annotation.AFTER}: {reason}')
    settled: set[str] = set()
    for name in waits_for:
        _follow(name, waits_for, [], settled)


def _follow(start: str, waits_for: dict[str, list[str]], path: list[str], settled: set[str]) -> None:
    """Walk everything that `start` waits for, depth first; without recursion, since a chain may be long."""
    trail = [(start, iter(waits_for[start]))]
    path.append(start)
    while trail:
        name, others = trail[-1]
        other = next((each for each in others if each not in settled), None)
        if other is None:
            settled.add(name)
            trail.pop()
            path.pop()
        elif other in path:
            circle = " -> ".join([*path[path.index(other) :], other])
            raise PlanError(f"annotation {Annotation.AFTER}: apps wait for each other: {circle}")
        else:
            path.append(other)
            trail.append((other, iter(waits_for[other])))


def plan_readiness(runtime: RuntimeApp, image: ImageManifest, sockets: int) -> tuple[bool, int | None]:
    """
    Return whether an app tells readiness by the socket (sd_notify(3)), and the descriptor for telling it, as with s6.

    `sockets` is the number of taken descriptors from 3 on.
    """
    own = runtime.annotation(ANNOTATION_NOTIFY)
    notifies = BOOLEANS.get((own if own is not None else image.annotation(ANNOTATION_NOTIFY)) or "", False)
    text = runtime.annotation(Annotation.NOTIFY_FD)
    if text is None:
        return notifies, None
    first = _FIRST_FD + sockets
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(_LAST_FD)) else 0
    if not first <= number <= _LAST_FD:
        expected = f"expected the number of a descriptor from {first} to {_LAST_FD}"
        raise PlanError(f'app "{runtime.name}": annotation {Annotation.NOTIFY_FD}: {expected}, got "{text}"')
    return notifies, number
