"""Asking a stage1 what rkt's entrypoints cannot tell, where it is minit's."""

from __future__ import annotations

import subprocess

from minit.base import jsontext
from minit.base.errors import ManifestError, PodError, describe
from minit.linux.process import ending_with_caller
from minit.podfiles import paths
from minit.stage0.pods.poddirectory import Pod
from minit.stage0.stage1 import entrypoints

LIVE_FIELDS = ("ready", "says", "restarts", "restart_in_seconds", "streams", "attached", "lost_output_bytes", "health")

_TIMEOUT_SECONDS = 20.0


def ask_stage1(pod: Pod, request: dict[str, object]) -> dict[str, object] | None:
    """
    Return the reply of a running pod's supervisor to a request, None if its stage1 has no `control` entrypoint.

    PodError if there is no reply, or the supervisor refuses.
    """
    manifest = entrypoints.read_stage1_manifest(pod)
    value = manifest.annotation(paths.ANNOTATION_CONTROL)
    if not value:
        return None
    program = pod.path / paths.POD_STAGE1_ROOTFS / value.lstrip("/")
    try:
        done = subprocess.run(
            [str(program), pod.uuid],
            cwd=pod.path,
            input=jsontext.dump(request) + b"\n",
            capture_output=True,
            preexec_fn=ending_with_caller(),
            check=False,
            timeout=_TIMEOUT_SECONDS,
        )
        reply = jsontext.parse(done.stdout, "reply")
    except subprocess.TimeoutExpired as error:
        raise PodError(f'pod "{pod.uuid}": no answer from its stage1 within {_TIMEOUT_SECONDS:g} s') from error
    except (OSError, ManifestError) as error:
        raise PodError(f'pod "{pod.uuid}": ask its stage1: {describe(error)}') from error
    if not isinstance(reply, dict):
        raise PodError(f'pod "{pod.uuid}": ask its stage1: expected an object')
    if reply.get("ok") is not True:
        raise PodError(f'pod "{pod.uuid}": {reply.get("error")}')
    return reply


def read_app_states(pod: Pod) -> dict[str, str] | None:
    """
    Return the states of a running pod's apps by name, in the words of the app-level API: `unknown`, `preparing`,
    `prepared`, `running`, `stopping`, `exited`, `deleting`.

    None if the stage1 is not minit's. PodError as `ask_stage1`.
    """
    apps = _ask_apps(pod)
    return None if apps is None else {name: str(app.get("lifecycle_state") or "unknown") for name, app in apps.items()}


def read_live(pod: Pod) -> dict[str, dict[str, object]]:
    """
    Return the LIVE_FIELDS that the supervisor of a running pod tells of each app, by the app's name.

    They are whether it is ready and what it says of itself, how often it was started again and when it will be, its
    health, the modes of its streams, and where some are attachable how many clients there are, the size of the
    terminal, and how much went through or was dropped. Nothing if the stage1 is not minit's. PodError as `ask_stage1`.
    """
    apps = _ask_apps(pod) or {}
    return {name: {field: app[field] for field in LIVE_FIELDS if field in app} for name, app in apps.items()}


def _ask_apps(pod: Pod) -> dict[str, dict[str, object]] | None:
    reply = ask_stage1(pod, {"op": "state"})
    if reply is None:
        return None
    apps = reply.get("apps")
    return {str(app.get("name")): app for app in (apps if isinstance(apps, list) else ()) if isinstance(app, dict)}
