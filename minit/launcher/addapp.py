"""
The `app/add` entrypoint's work: an app for a pod that runs.

The app is planned and prepared here, on the host, by the same function as the apps of a pod that starts. Everything
goes to PID 1 as descriptors, with the root as stage0 has mounted the root, so that nothing depends on how mounts are
propagated on the host.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from minit.base.errors import LaunchError, MinitError, PlanError, Step, describe, step_of
from minit.base.value import replace
from minit.launcher.apps import check_running, report_failure
from minit.launcher.cgroups import (
    Hierarchy,
    read_subcgroup,
    remove_app_groups,
)
from minit.launcher.health.healthhelper import HealthHelper, PodChecks
from minit.launcher.podhelper import PodHelper
from minit.launcher.start.delegation import hierarchies_of_pod
from minit.launcher.start.enterprofiles import write_profile
from minit.launcher.start.load import collect_facts, load_app, read_pod_manifest, read_runtime_config
from minit.launcher.start.preparation import Placed, Prepared, Start, no_sockets, prepare
from minit.launcher.start.usernamespace import make_dev, makes_dev
from minit.launcher.stop import read_pid
from minit.linux import syscalls
from minit.linux.messages import memory_file
from minit.linux.process import raise_limits, read_limits
from minit.linux.stdio import complain
from minit.network.podnames import change_apps
from minit.plan.appspec import encode_spec
from minit.plan.inputs.appflags import AddFlags
from minit.plan.inputs.runflags import RunFlags
from minit.plan.networks.networkplan import Connection
from minit.plan.networks.podnetwork import joins_networks
from minit.plan.podplan import PodPlan, plan_added_app
from minit.plan.streams import STREAM_CONSOLE
from minit.podfiles import paths
from minit.podfiles.controlmessages import ADDING_VERSION, MAXIMUM_DESCRIPTORS, AddApp, EnterApp, RemoveApp
from minit.supervisor.apps.controlgroup import GroupEnds
from minit.supervisor.control import adding
from minit.supervisor.control.ask import ask, ask_state

# Longer than PID 1 gives the process that makes the app's root.
_ANSWER_SECONDS = 90.0


def add_app(options: AddFlags) -> None:
    """Add an app to the pod in the working directory; nothing of it is left in the pod if that fails."""
    check_running()
    try:
        _add(options)
    except (MinitError, OSError) as error:
        report_failure(options.app, error)
        raise


def _add(options: AddFlags) -> None:
    if not read_pod_manifest().is_mutable:
        raise PlanError("immutable pod")
    _refuse_known(options.app)
    addition = _Addition(options)
    try:
        addition.run()
    except BaseException as error:
        addition.undo()
        if isinstance(error, OSError):
            raise LaunchError(f"failed to {step_of(error)}: {describe(error)}") from error
        raise


class _Addition:
    """An app that is being added, and the helpers that stay with the app."""

    def __init__(self, options: AddFlags) -> None:
        self._options = options
        self._helpers: list[PodHelper] = []
        self._placed: Placed | None = None

    def run(self) -> None:
        """Prepare the app, and have PID 1 take the app in."""
        start = Start(
            plan=lambda hierarchies: _plan(self._options, hierarchies),
            place=lambda plan, hierarchies: read_subcgroup() if hierarchies else "",
            sockets=no_sockets,
            begin=self._begin,
            pod=read_pid(),
            find=hierarchies_of_pod,
        )
        prepared = prepare(start, self._helpers)
        lives = [] if prepared.life is None else [prepared.life]
        [spec] = prepared.specs
        if spec.life.health:
            with Step("start checking the health of the app"):
                health = HealthHelper(PodChecks(prepared.plan, read_pid()), stays=True)
                self._helpers.append(health)
                lives.append(health.wait_settled())
        with Step("open the root of the app"):
            sent = [*_roles(prepared), *_helper_roles(self._helpers, lives)]
        _hand_over(spec.name, sent, is_v2=prepared.groups.apps[0].is_v2)
        try:
            with Step("write the profile of the app"):
                _write_profile(spec.name)
            change_apps(self._options.uuid, added=(spec.name,))
        except BaseException:
            ask(RemoveApp(app=spec.name), _ANSWER_SECONDS)
            raise

    def undo(self) -> None:
        """Leave nothing of the app on the host."""
        for helper in self._helpers:
            helper.end()
        if self._placed is not None:
            self._remove_groups(self._placed)

    def _begin(self, placed: Placed) -> None:
        # Remains of a killed `app/add`: somebody's limits, or a group that cgroup.kill was written to.
        self._remove_groups(placed)
        self._placed = placed

    def _remove_groups(self, placed: Placed) -> None:
        remove_app_groups(placed.hierarchies, placed.subcgroup, self._options.app)


def _refuse_known(app: str) -> None:
    # Here, since what follows begins with removing leftovers of that name.
    if any(known.name == app for known in ask_state().apps):
        raise LaunchError(f'app "{app}" is in this pod already')


def _plan(options: AddFlags, hierarchies: Sequence[Hierarchy]) -> PodPlan:
    config = read_runtime_config(options.uuid)
    flags = _override(config.flags, options)
    with Step("load app"):
        pod = load_app(options.app, flags)
        limits = read_limits()
        raise_limits()
        facts = collect_facts(hierarchies, pod, flags, limits)
    connection: Connection | None = None
    if joins_networks(flags.networks) or config.is_host_dns or config.pod_addresses:
        connection = Connection(
            namespace="",
            host_address=config.host_address,
            resolv_conf=config.resolv_conf,
            is_host_dns=config.is_host_dns,
            pod_addresses=config.pod_addresses,
        )
    plan = plan_added_app(pod, flags, facts, connection)
    for line in plan.notices():
        complain(f"stage1: {line}")
    if any(STREAM_CONSOLE in (app.streams.stdin, app.streams.stdout, app.streams.stderr) for app in plan.apps):
        raise PlanError(f'app "{options.app}": a pod that runs has no console: interactive streams cannot be had')
    return plan


def _override(flags: RunFlags, options: AddFlags) -> RunFlags:
    given = {name: getattr(options, name) for name in ("private_users", "disable_capabilities")}
    given |= {name: getattr(options, name) for name in ("disable_paths", "disable_seccomp")}
    return replace(
        flags,
        debug=flags.debug or options.debug,
        interactive=False,
        **{name: value for name, value in given.items() if value is not None},
    )


def _hand_over(app: str, sent: Sequence[tuple[str, int]], *, is_v2: bool) -> None:
    """Have PID 1 take in an app by these descriptors, each with its role."""
    if len(sent) > MAXIMUM_DESCRIPTORS:
        volumes = sum(role == adding.TREE for role, _ in sent)
        raise LaunchError(f'app "{app}": {volumes} volumes are too many for a pod that runs')
    roles = tuple(role for role, _ in sent)
    request = AddApp(app=app, version=ADDING_VERSION, descriptors=roles, v2=is_v2)
    ask(request, _ANSWER_SECONDS, [fd for _, fd in sent])


def _roles(prepared: Prepared) -> list[tuple[str, int]]:
    """Return the descriptors of the app for PID 1, each with its role."""
    [spec], [trees], [group], [sockets] = prepared.specs, prepared.trees, prepared.groups.apps, prepared.sockets
    # The spec could outgrow a message.
    sent = [(adding.SPEC, memory_file("spec", encode_spec(spec))), (adding.ROOT, _open_root(spec.name))]
    if prepared.plan.private_users is not None and makes_dev(prepared.plan):
        sent.append((adding.DEV, make_dev(prepared.plan.private_users)))
    sent += [(adding.TREE, tree) for tree in trees]
    sent += _group_roles(group)
    return sent + [(adding.SOCKET, fd) for fd in sockets if fd is not None]


def _helper_roles(helpers: Sequence[PodHelper], lives: Sequence[int]) -> list[tuple[str, int]]:
    sent = []
    for helper, life in zip(helpers, lives):
        sent.append((adding.HELPER + helper.kind, helper.fileno()))
        sent.append((adding.PROCESS + helper.kind, os.pidfd_open(helper.pid)))
        sent.append((adding.LIFE + helper.kind, life))
    return sent


def _group_roles(group: GroupEnds) -> list[tuple[str, int]]:
    roles = [] if group.directory is None else [(adding.GROUP, group.directory)]
    roles += [(adding.TASKS, fd) for fd in group.tasks]
    roles += [(adding.FILE + name, fd) for name, fd in group.files]
    roles += [] if group.freezer is None else [(adding.FREEZER, group.freezer)]
    return roles + ([] if group.memory is None else [(adding.MEMORY, group.memory)])


def _open_root(app: str) -> int:
    """Return the app's root as stage0 has mounted it here, or laid it out, as a detached mount."""
    path = f"{paths.POD_STAGE1_ROOTFS}/{paths.app_rootfs(app)}"
    tree = syscalls.open_tree(syscalls.AT_FDCWD, path, syscalls.OPEN_TREE_CLONE | syscalls.AT_RECURSIVE)
    # Out of its peer group: no mount of the pod may appear on the host, nor keep the host from unmounting this one.
    syscalls.mount_setattr(tree, flags=syscalls.AT_RECURSIVE, propagation=syscalls.MS_PRIVATE)
    return tree


def _write_profile(app: str) -> None:
    """Write what `enter` needs when PID 1 does not answer; PID 1 knows which limits its apps have."""
    _, [namespace, profile, *_] = ask(EnterApp(app=app))
    os.close(namespace)
    write_profile(app, profile)
