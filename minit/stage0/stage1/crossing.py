"""Calling the entrypoints of stage1 that reach into a running pod: those for its apps."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence

from minit.base.errors import FailureKind, PodError, describe
from minit.linux.process import ending_with_caller
from minit.manifest.image import ImageManifest
from minit.podfiles import paths
from minit.stage0.pods.poddirectory import Pod
from minit.stage0.pods.podwaiting import wait_for_pid
from minit.stage0.stage1 import entrypoints

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""rkt's, for a caller without one, and for apps."""

_STDERR = 2
_NO_SUCH_APP = 5
_LONGEST_KIND_BYTES = 100


class EntrypointFailed(PodError):
    """
    An entrypoint of stage1 was executed and failed; `was_killed` if by a signal, so that it may not be done.

    Its kind is the one that the entrypoint has told.
    """

    def __init__(self, text: str, kind: FailureKind | None = None, *, was_killed: bool) -> None:
        super().__init__(text)
        self.kind = kind
        self.was_killed = was_killed


def crossing_environment(pod: Pod, manifest: ImageManifest) -> dict[str, str]:
    """Return all that such an entrypoint finds in its environment, as soon as the pod can be entered."""
    enter = pod.path / paths.POD_STAGE1_ROOTFS / entrypoints.require_path(manifest, "enter")
    return {
        "RKT_STAGE1_ENTERCMD": str(enter),
        "RKT_STAGE1_ENTERPID": str(wait_for_pid(pod)),
        "PATH": os.environ.get("PATH") or DEFAULT_PATH,
    }


def call_crossing(pod: Pod, entrypoint: str, arguments: Sequence[str], *, alone: bool = False) -> None:
    """
    Run an entrypoint to its end; what it prints goes to standard error. EntrypointFailed if it fails.

    `alone` keeps the signals of the caller's terminal from it.
    """
    manifest = entrypoints.read_stage1_manifest(pod)
    program = pod.path / paths.POD_STAGE1_ROOTFS / entrypoints.require_path(manifest, entrypoint)
    told = os.memfd_create("kind", os.MFD_CLOEXEC)
    # Others than minit's own find what they find under rkt.
    tells = manifest.annotation(paths.ANNOTATION_CONTROL) is not None
    more = {paths.FAILURE_KIND_VARIABLE: str(told)} if tells else {}
    try:
        code = subprocess.run(
            [str(program), *arguments],
            cwd=pod.path,
            env=crossing_environment(pod, manifest) | more,
            pass_fds=(told,) if tells else (),
            stdin=subprocess.DEVNULL,
            # rkt keeps it to itself, and with it the reason of every failure.
            stdout=_STDERR,
            process_group=0 if alone else None,
            preexec_fn=ending_with_caller(),
            check=False,
        ).returncode
        kind = _kind(os.pread(told, _LONGEST_KIND_BYTES, 0))
    except OSError as error:
        raise PodError(f"cannot execute stage1's entrypoint {program}: {describe(error)}") from error
    finally:
        os.close(told)
    if code < 0:
        name = signal.Signals(-code).name
        raise EntrypointFailed(f"stage1's {entrypoint} was killed by {name}", was_killed=True)
    # Only some stage1 know no success for an app that they do not know.                  rkt stage0, app_rm.go
    if code != 0 and (entrypoint, code) != ("app/stop", _NO_SUCH_APP):
        raise EntrypointFailed(f"stage1's {entrypoint} failed: exit status {code}", kind, was_killed=False)


def _kind(text: bytes) -> FailureKind | None:
    return next((kind for kind in FailureKind if kind.encode() == text), None)
