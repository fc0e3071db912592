"""Calls of the entrypoints of a running pod's stage1: the control socket of minit's own, those for apps, and `stop`."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from minit.base import jsontext
from minit.base.errors import ControlError, FailureKind, ManifestError, MinitError, PodError, describe
from minit.base.harmless import harmless
from minit.linux.process import ending_with_caller
from minit.manifest.image import ImageManifest
from minit.podfiles import paths
from minit.podfiles.controlmessages import Answer, AskState, LiveApp, LivePod, Request
from minit.podfiles.usersdirectory import RUNTIME_VARIABLE
from minit.stage0.pods.poddirectory import EXITED_GARBAGE, GARBAGE, Pod, PodState
from minit.stage0.pods.waiting import wait_for_pid
from minit.stage0.stage1 import entrypoints

_LIVE_FIELDS = ("ready", "says", "restarts", "restart_in_seconds", "streams", "attached", "lost_output_bytes", "health")

_TIMEOUT_SECONDS = 20.0

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""rkt's, for a caller without one, and for apps."""

_STDERR = 2
_NO_SUCH_APP = 5
_LONGEST_FAILURE_BYTES = 1 << 16


class UnansweredError(PodError):
    """The supervisor of a pod may have a request, and carry out the request, without an answer."""


def ask_stage1(pod: Pod, request: Request) -> Answer | None:
    """
    Return the answer of a running pod's supervisor to a request, None if its stage1 has no `control` entrypoint.

    UnansweredError if there is no answer in time, PodError if the supervisor refuses.
    """
    manifest = entrypoints.read_stage1_manifest(pod)
    value = manifest.annotation(paths.ANNOTATION_CONTROL)
    if not value:
        return None
    return ask_by(pod.path / paths.POD_STAGE1_ROOTFS / value.lstrip("/"), pod, request)


def ask_by(program: Path, pod: Pod, request: Request) -> Answer:
    """Return the answer to a request by a `control` entrypoint, of any image; otherwise as `ask_stage1`."""
    try:
        done = subprocess.run(
            [str(program), pod.uuid],
            cwd=pod.path,
            input=jsontext.dump(request.to_json()) + b"\n",
            capture_output=True,
            preexec_fn=ending_with_caller(),
            check=False,
            timeout=_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise UnansweredError(f'pod "{pod.uuid}": no answer from its stage1 within {_TIMEOUT_SECONDS:g} s') from error
    except OSError as error:
        raise PodError(f'pod "{pod.uuid}": ask its stage1: {describe(error)}') from error
    try:
        reply = jsontext.parse(done.stdout, "answer")
    except ManifestError as error:
        reason = os.fsdecode(done.stderr).strip().partition("\n")[0] or describe(error)
        raise UnansweredError(f'pod "{pod.uuid}": ask its stage1: {reason}') from error
    if not isinstance(reply, dict):
        raise UnansweredError(f'pod "{pod.uuid}": ask its stage1: expected an object')
    if reply.get("is_unanswered") is True:
        raise UnansweredError(f'pod "{pod.uuid}": {reply.get("error")}')
    try:
        return request.read_answer(reply)
    except ControlError as error:
        raise PodError(f'pod "{pod.uuid}": {error}') from error


def read_app_states(pod: Pod) -> dict[str, str] | None:
    """
    Return the states of a running pod's apps by name, in the words of the app-level API: `unknown`, `preparing`,
    `prepared`, `running`, `stopping`, `exited`, `deleting`.

    None if the stage1 is not minit's. PodError as `ask_stage1`.
    """
    apps = _ask_apps(pod)
    return None if apps is None else {name: app.lifecycle_state or "unknown" for name, app in apps.items()}


def read_live(pod: Pod) -> dict[str, dict[str, object]]:
    """
    Return the fields that the supervisor of a running pod tells of each app, by the app's name.

    The fields are the app's readiness and the app's own words, the number of restarts and the time of the next restart,
    the health, the modes of the streams, and for attachable streams the number of clients, the size of the terminal,
    and the number of passed and dropped bytes. Nothing if the stage1 is not minit's. PodError as `ask_stage1`.
    """
    found = {name: app.to_json() for name, app in (_ask_apps(pod) or {}).items()}
    return {name: {field: app[field] for field in _LIVE_FIELDS if field in app} for name, app in found.items()}


def _ask_apps(pod: Pod) -> dict[str, LiveApp] | None:
    state = ask_stage1(pod, AskState())
    if state is None:
        return None
    assert isinstance(state, LivePod)
    return {app.name: app for app in state.apps}


class EntrypointFailed(PodError):
    """
    An entrypoint of stage1 was executed and failed; `was_killed` if by a signal, so that work may be unfinished.

    The entrypoint reports kind and reason of the failure.
    """

    def __init__(
        self, text: str, kind: FailureKind | None = None, reason: str | None = None, *, was_killed: bool
    ) -> None:
        super().__init__(text)
        self.kind = kind
        self.reason = reason
        self.was_killed = was_killed


def crossing_environment(pod: Pod, manifest: ImageManifest) -> dict[str, str]:
    """Return the environment of an entrypoint for apps, as soon as the pod can be entered."""
    enter = pod.path / paths.POD_STAGE1_ROOTFS / entrypoints.require_path(manifest, "enter")
    return {
        "RKT_STAGE1_ENTERCMD": str(enter),
        "RKT_STAGE1_ENTERPID": str(wait_for_pid(pod)),
        "PATH": os.environ.get("PATH") or DEFAULT_PATH,
        **{name: os.environ[name] for name in (RUNTIME_VARIABLE,) if name in os.environ},
    }


def call_crossing(pod: Pod, entrypoint: str, arguments: Sequence[str], *, alone: bool = False) -> None:
    """
    Run an entrypoint to the end; the output goes to standard error. EntrypointFailed for a failure.

    `alone` keeps the signals of the caller's terminal from the entrypoint.
    """
    manifest = entrypoints.read_stage1_manifest(pod)
    program = pod.path / paths.POD_STAGE1_ROOTFS / entrypoints.require_path(manifest, entrypoint)
    told = os.memfd_create("failure", os.MFD_CLOEXEC)
    # Entrypoints of another stage1 get the same environment as under rkt.
    tells = manifest.annotation(paths.ANNOTATION_CONTROL) is not None
    more = {paths.FAILURE_VARIABLE: str(told)} if tells else {}
    try:
        code = subprocess.run(
            [str(program), *arguments],
            cwd=pod.path,
            env=crossing_environment(pod, manifest) | more,
            pass_fds=(told,) if tells else (),
            stdin=subprocess.DEVNULL,
            # rkt drops the output, and with it the reason of every failure.
            stdout=_STDERR,
            process_group=0 if alone else None,
            preexec_fn=ending_with_caller(),
            check=False,
        ).returncode
        kind, reason = _failure(os.pread(told, _LONGEST_FAILURE_BYTES, 0))
    except OSError as error:
        raise PodError(f"cannot execute stage1's entrypoint {program}: {describe(error)}") from error
    finally:
        os.close(told)
    if code < 0:
        name = signal.Signals(-code).name
        raise EntrypointFailed(f"stage1's {entrypoint} was killed by {name}", was_killed=True)
    # Some stage1 report a failure for an app that is not known.                          rkt stage0, app_rm.go
    if code != 0 and (entrypoint, code) != ("app/stop", _NO_SUCH_APP):
        raise EntrypointFailed(f"stage1's {entrypoint} failed: exit status {code}", kind, reason, was_killed=False)


def _failure(data: bytes) -> tuple[FailureKind | None, str | None]:
    """Return kind and reason as an entrypoint has told them, None for what it has not told."""
    try:
        told = jsontext.parse(data, "failure") if data else None
    except ManifestError:
        told = None
    if not isinstance(told, dict):
        return None, None
    kind = next((kind for kind in FailureKind if kind == told.get("kind")), None)
    reason = told.get("reason")
    return kind, harmless(reason) if isinstance(reason, str) else None


def stop_pod(pod: Pod, *, force: bool) -> bool:
    """
    Ask stage1 to stop the pod and return at once; False for a pod that has ended before, or during a failed call.

    PodError if stage1 fails with a pod that goes on.
    """
    if _has_ended(pod):
        return False
    if pod.state is not PodState.RUNNING:
        raise PodError(f'pod "{pod.uuid}" is not running: its state is "{pod.state}"')
    try:
        _call_stage1(pod, force=force)
    except (OSError, MinitError):
        # Another process may have removed the pod with all files.
        if not pod.refresh() or _has_ended(pod):
            return False
        raise
    return True


def _has_ended(pod: Pod) -> bool:
    return pod.state is PodState.EXITED or pod.place in (EXITED_GARBAGE, GARBAGE)


def _call_stage1(pod: Pod, *, force: bool) -> None:
    stop = entrypoints.require_path(entrypoints.read_stage1_manifest(pod), "stop")
    program = pod.path / paths.POD_STAGE1_ROOTFS / stop
    code = entrypoints.call(program, entrypoints.stop_arguments(pod.uuid, force=force), pod.path, show_stdout=True)
    if code != 0:
        raise PodError(f'cannot stop pod "{pod.uuid}": its stage1 failed with exit status {code}')
