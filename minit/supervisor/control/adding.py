"""
Taking in an app that `app/add` has planned: its spec and everything that only the host can open arrive as descriptors.

Its root is made at once, by a process that ends with that; what stays is the mount namespace in which the app is
started, as often as somebody asks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from minit.base.errors import ControlError
from minit.linux.attributes import Attributes
from minit.linux.messages import Socket, socket_pair
from minit.plan.appspec import AppSpec, decode_spec
from minit.podfiles import paths
from minit.podfiles.boundedfile import read_bounded
from minit.podfiles.controlmessages import AddApp
from minit.reaper.record import remove_file, write_file
from minit.supervisor.apps.apphelper import AppHelper
from minit.supervisor.apps.apprecords import write_environment
from minit.supervisor.apps.controlgroup import GroupEnds
from minit.supervisor.apps.lifecycle import State
from minit.supervisor.apps.podapp import App
from minit.supervisor.exec.child import ChildEnds, fork_app
from minit.supervisor.exec.notifyends import NotifyEnds
from minit.supervisor.exec.socketactivation import open_sockets

# The purpose of each descriptor.
SPEC, ROOT, DEV, TREE, SOCKET = "spec", "root", "dev", "tree", "socket"
GROUP, TASKS, FREEZER, MEMORY, FILE = "group", "tasks", "freezer", "memory", "file:"
# Of a helper, with its kind: its socket, its pidfd, and what it lives by.
HELPER, PROCESS, LIFE = "helper:", "process:", "life:"
_MAXIMUM_SPEC_BYTES = 4 << 20


def take_in(request: AddApp, descriptors: Sequence[int], attributes: Attributes) -> App:
    """
    Return the app of a request, its builder being at work. The descriptors are taken over.

    MinitError or OSError, and nothing left, if the request is not understood or there is no process.
    """
    kept: list[int] = []
    try:
        if len(request.descriptors) != len(descriptors):
            raise ControlError("request: expected a role for each descriptor")
        of_role: dict[str, list[int]] = {}
        for role, fd in zip(request.descriptors, descriptors):
            of_role.setdefault(role, []).append(fd)
        spec = decode_spec(_read_spec(_only(of_role, SPEC)))
        if spec.name != request.app:
            raise ControlError(f"spec: of app {spec.name}, not of {request.app}")
        ends = _group_ends(spec.name, of_role, is_v2=request.v2)
        root, trees = _only(of_role, ROOT), tuple(of_role.get(TREE, ()))
        dev = next(iter(of_role.get(DEV, ())), None)
        if len(trees) != len(spec.storage.volumes):
            raise ControlError("request: expected a descriptor for each volume")
        helpers = _helpers(spec.name, of_role)
        wanted = spec.process.sockets
        sockets = open_sockets(spec.name, wanted, of_role.get(SOCKET) or [None] * len(wanted))
        # Those that were passed are among the descriptors.
        opened = [fd for fd in sockets if fd not in descriptors]
        try:
            write_app_files(spec)
            app = App(spec, ends, attributes, sockets, State.BUILDING)
            _spawn_builder(app, root, trees, dev)
        except BaseException:
            for fd in opened:
                os.close(fd)
            raise
        app.helpers = helpers
        held = [fd for helper in helpers for fd in helper.descriptors()]
        kept = [*ends.descriptors(), *sockets, *held]
    finally:
        for fd in set(descriptors) - set(kept):
            os.close(fd)
    return app


def _spawn_builder(app: App, root: int, trees: tuple[int, ...], dev: int | None) -> None:
    ours, theirs = socket_pair()
    notify: NotifyEnds | None = None
    try:
        notify = None if app.readiness is None else app.readiness.open_root(app.spec)
        _fork_builder(app, root, trees, dev, theirs, notify)
    except OSError:
        ours.close()
        if app.readiness is not None:
            app.readiness.close()
        raise
    finally:
        theirs.close()
        for fd in () if notify is None else notify.descriptors():
            os.close(fd)
    app.run.report = ours


def _fork_builder(
    app: App, root: int, trees: tuple[int, ...], dev: int | None, report: Socket, notify: NotifyEnds | None
) -> None:
    child = ChildEnds(
        report=report,
        stdout=None,
        stderr=None,
        attributes=app.attributes,
        trees=trees,
        dev=dev,
        root=root,
        notify=notify,
        is_builder=True,
    )
    app.run.pid, app.run.pidfd = fork_app(app.spec, paths.app_rootfs(app.name), child)


def _only(of_role: dict[str, list[int]], role: str) -> int:
    if len(of_role.get(role, ())) != 1:
        raise ControlError(f"request: expected one descriptor for {role}")
    return of_role[role][0]


def _group_ends(app: str, of_role: dict[str, list[int]], *, is_v2: bool) -> GroupEnds:
    files = [(role.removeprefix(FILE), fds[0]) for role, fds in of_role.items() if role.startswith(FILE)]
    return GroupEnds(
        app=app,
        directory=_only(of_role, GROUP) if GROUP in of_role else None,
        is_v2=is_v2,
        tasks=tuple(of_role.get(TASKS, ())),
        freezer=next(iter(of_role.get(FREEZER, ())), None),
        files=tuple(files),
        memory=next(iter(of_role.get(MEMORY, ())), None),
    )


def _helpers(app: str, of_role: dict[str, list[int]]) -> tuple[AppHelper, ...]:
    kinds = [role.removeprefix(HELPER) for role in of_role if role.startswith(HELPER)]
    return tuple(
        AppHelper(
            app,
            kind,
            socket=_only(of_role, HELPER + kind),
            pidfd=_only(of_role, PROCESS + kind),
            life=_only(of_role, LIFE + kind),
        )
        for kind in kinds
    )


def _read_spec(fd: int) -> bytes:
    # A copy of the descriptor, which the reader closes.
    os.lseek(fd, 0, os.SEEK_SET)
    return read_bounded(os.dup(fd), "spec", _MAXIMUM_SPEC_BYTES)


def write_app_files(spec: AppSpec) -> None:
    """Write what `enter` reads about an app, instead of what there may be."""
    # stage0's own may belong to the host's root.
    remove_file(paths.env_file(spec.name))
    write_environment(spec.name, spec.process.environment)
    marker = paths.created_marker(spec.name)
    if not os.path.exists(marker):
        write_file(marker, b"")
