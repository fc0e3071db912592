"""PID 1's half of starting an app: its streams, its process, and the socket by which that says how far it has come."""

from __future__ import annotations

import os

from minit.linux.messages import socket_pair
from minit.plan.appplan import STREAM_LOG
from minit.podfiles.paths import app_rootfs
from minit.supervisor.apps.podapp import App
from minit.supervisor.exec.child import ChildEnds, fork_app
from minit.supervisor.exec.notifyends import NotifyEnds


def spawn_app(
    app: App,
    trees: tuple[int, ...] = (),
    console: int | None = None,
    dev: int | None = None,
    pids: int | None = None,
) -> None:
    """
    Fork the process of `app`, which prepares itself and waits for "go".

    It starts in its v2 group, where there is one in which PID 1 may start it, and joins the v1 groups itself.
    `trees` are the detached mounts of its volumes, `console` is the slave of the pod's console, `dev` a detached /dev
    if it may not make one itself, `pids` the PID namespace of another app if it is to be in that. Started again, it
    finds its root in the namespace of the app. OSError, and nothing left, if there is no process or no room for its
    streams.
    """
    birthplace = app.group.birthplace
    writers = _open_streams(app)
    ours, theirs = socket_pair()
    notify: NotifyEnds | None = None
    try:
        notify = None if app.readiness is None else app.readiness.open(app.spec)
        child = ChildEnds(
            report=theirs,
            stdin=writers.get("stdin"),
            stdout=writers.get("stdout"),
            stderr=writers.get("stderr"),
            tty=writers.get("tty"),
            console=console if app.spec.streams.has_console else None,
            cgroup_tasks=app.ends.tasks,
            attributes=app.attributes,
            trees=trees,
            dev=dev,
            sockets=app.sockets,
            notify=notify,
            namespace=app.namespace,
            group=app.ends.directory if app.ends.starts_processes and birthplace is None else None,
        )
        # Fork and registration: nothing may be reaped between them.
        app.run.pid, app.run.pidfd = fork_app(app.spec, app_rootfs(app.name), child, birthplace, pids)
    except OSError:
        ours.close()
        app.run.streams.close()
        raise
    finally:
        theirs.close()
        for fd in (*writers.values(), *(() if notify is None else notify.descriptors())):
            os.close(fd)
    app.starts += 1
    app.run.streams.pid = app.run.pid
    app.run.report = ours


def _open_streams(app: App) -> dict[str, int]:
    """Make the app's streams and return its own ends, the caller's, by name."""
    modes = {"stdout": app.spec.streams.stdout, "stderr": app.spec.streams.stderr}
    writers = app.run.streams.open(
        [name for name, mode in modes.items() if mode == STREAM_LOG], app.spec.process.uid, app.spec.process.gid
    )
    if app.spec.streams.is_attachable:
        try:
            writers |= app.run.streams.open_attachable(app.spec)
        except OSError:
            for fd in writers.values():
                os.close(fd)
            app.run.streams.close()
            raise
    return writers
