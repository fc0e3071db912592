"""Running a command in an app of a running pod."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from minit.base.errors import PodError, describe
from minit.linux.messages import receive_message, socket_pair
from minit.linux.process import ending_with_caller
from minit.manifest.names import is_ac_name
from minit.podfiles import paths
from minit.stage0.pods.poddirectory import Pod, PodState
from minit.stage0.pods.podstatus import read_pod_manifest, read_stage1_tree_id
from minit.stage0.pods.podwaiting import wait_for_pid
from minit.stage0.stage1 import entrypoints


def enter_pod(
    pod: Pod,
    tree_path: Callable[[str], Path] | None,
    app: str | None,
    command: Sequence[str],
    before_exec: Callable[[], None],
    *,
    privileged: bool = False,
    as_app: bool = False,
    timeout_seconds: float | None = None,
) -> NoReturn:
    """
    Become stage1's `enter`, which runs `command` in an app (None: the only one), not confined as the app if
    `privileged`, as its user if `as_app`, and killed after a time; `before_exec` is called last. `tree_path` finds a
    tree of the tree store by its id; without it, on a machine that minit boots, `enter` is the pod's.
    """
    _refuse_ended(pod)
    name = choose_app(pod, app)
    program = _program(pod, tree_path)
    pid = wait_for_pid(pod)
    os.chdir(pod.path)
    before_exec()
    arguments = entrypoints.enter_arguments(
        pid, name, command, privileged=privileged, as_app=as_app, timeout_seconds=timeout_seconds
    )
    entrypoints.execute(program, arguments, dict(os.environ))


def enter_as_app(
    pod: Pod,
    tree_path: Callable[[str], Path],
    app: str,
    command: Sequence[str],
    timeout_seconds: float | None,
    failure_fd: int | None,
) -> list[str]:
    """
    Return the words of a process that runs `command` as an app's user, to be executed in the pod's directory.

    If that fails, and not the command, the reason is written to `failure_fd`, which the process has to inherit.

    PodError if the pod does not run.
    """
    _refuse_ended(pod)
    program, pid = _program(pod, tree_path), wait_for_pid(pod)
    arguments = entrypoints.enter_arguments(
        pid,
        app,
        command,
        privileged=False,
        as_app=True,
        timeout_seconds=timeout_seconds,
        failure_fd=failure_fd,
    )
    return [str(program), *arguments]


def open_app_root(pod: Pod, tree_path: Callable[[str], Path], app: str) -> list[int]:
    """
    Return descriptors of the root of an app of a running pod, and of what keeps the app's mounts in it.

    None are returned if stage1 cannot tell them: the app does not run, or it is another stage1 than minit's.
    """
    options = entrypoints.read_stage1_manifest(pod).annotation(paths.ANNOTATION_ENTER_OPTIONS) or ""
    if paths.ENTER_ROOT_FD not in options.split(","):
        return []
    program, pid = _program(pod, tree_path), wait_for_pid(pod)
    ours, theirs = socket_pair()
    with ours:
        with theirs:
            try:
                subprocess.run(
                    [program, f"--pid={pid}", f"--appname={app}", f"--root-fd={theirs.fileno()}"],
                    cwd=pod.path,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    preexec_fn=ending_with_caller(),
                    check=False,
                )
            except OSError as error:
                raise PodError(f"cannot execute stage1's entrypoint {program}: {describe(error)}") from error
        return receive_message(ours)[1]


def _program(pod: Pod, tree_path: Callable[[str], Path] | None) -> Path:
    """Return the path of stage1's `enter`, from the tree store, where no pod can have changed it, if there is one."""
    enter = entrypoints.require_path(entrypoints.read_stage1_manifest(pod), "enter")
    root = pod.path / paths.POD_STAGE1 if tree_path is None else tree_path(read_stage1_tree_id(pod))
    return root / "rootfs" / enter


def _refuse_ended(pod: Pod) -> None:
    if pod.state is not PodState.RUNNING:
        raise PodError(f'pod "{pod.uuid}" isn\'t currently running: its state is "{pod.state}"')


def choose_app(pod: Pod, app: str | None) -> str:
    """Return the app the user named, or else the only one of the pod; PodError if that is none."""
    if app is not None:
        if not is_ac_name(app):
            raise PodError(f'"{app}" is no app name: expected lower-case letters, digits and inner dashes')
        return app
    names = [app.name for app in read_pod_manifest(pod).apps]
    if len(names) != 1:
        listing = ", ".join(names) or "none"
        raise PodError(f'pod "{pod.uuid}" has {len(names)} apps: choose one with --app (apps: {listing})')
    return names[0]
