"""The standard streams of an app and its log: maximum size, and rkt's log mode k8s-plain."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from minit.base.errors import PlanError
from minit.base.value import Value
from minit.manifest.annotations import Annotation
from minit.manifest.limits import BILLION, parse_quantity
from minit.manifest.pod import PodManifest, RuntimeApp
from minit.plan.inputs.runflags import RunFlags
from minit.plan.loadedpod import AppInput
from minit.podfiles.paths import (
    ANNOTATION_KUBERNETES_DIRECTORY,
    ANNOTATION_LOG_MODE,
    ANNOTATION_STREAM,
    STAGE1_KUBERNETES_LOG,
)

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
ANNOTATION_KUBERNETES_PATH = "coreos.com/rkt/experiment/kubernetes-log-path"

_K8S_PLAIN = "k8s-plain"
# The modes of a stream for the file: rkt's and ours.
_MODES = ("stream", "log+stream", "log+tty")
# Several writes of a sidecar fit into a file.
_SMALLEST_BYTES = 64 * 1024
_LARGEST_BYTES = 1 << 50
# A reader may have all open at a time.
_MOST_FILES = 100
_FAIL, _IGNORE = "fail", "ignore"


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

    def describe(self) -> list[str]:
        """Return the streams as lines for --debug."""
        return [f"stdin {self.stdin} stdout {self.stdout} stderr {self.stderr}"]


def plan_streams(given: AppInput, *, in_kubernetes: bool) -> StreamsPlan:
    """Return the streams of an app; with `in_kubernetes` the pod has the log mode k8s-plain."""
    runtime, manifest, flags = given.runtime, given.pod.manifest, given.pod.flags
    size_bytes, files = plan_log_size(runtime, manifest), plan_log_files(runtime, manifest)
    path = plan_log_path(runtime, manifest)
    if path is not None:
        size_bytes, files = 0, 1
    return StreamsPlan(
        stdin=_plan_stream(runtime, "stdin", flags),
        stdout=_plan_stream(runtime, "stdout", flags),
        stderr=_plan_stream(runtime, "stderr", flags),
        log_size_bytes=DEFAULT_LOG_SIZE_BYTES if size_bytes is None else size_bytes,
        log_files=DEFAULT_LOG_FILES if files is None else files,
        log_path=path,
        lost_output_fails=plan_lost_output(runtime, manifest),
        kubernetes_log=plan_kubernetes_log(runtime) if in_kubernetes else None,
    )


def _plan_stream(runtime: RuntimeApp, stream: str, flags: RunFlags) -> str:
    # Anything unrecognised is the log, for stdin null, as in rkt.
    mode = "interactive" if flags.interactive else runtime.annotation(ANNOTATION_STREAM + stream)
    if mode == "interactive":
        return STREAM_CONSOLE
    if mode in (STREAM_STREAM, STREAM_TTY) or (stream != "stdin" and mode in (STREAM_LOG_STREAM, STREAM_LOG_TTY)):
        return mode
    return STREAM_NULL if stream == "stdin" or mode == "null" else STREAM_LOG


def plan_log_size(runtime: RuntimeApp, manifest: PodManifest) -> int | None:
    """Return how many bytes a log file of an app may have, by its annotation or the pod's; None if neither says."""
    size_bytes = _read_size(runtime.annotation(Annotation.LOG_SIZE), f'app "{runtime.name}": ')
    return _read_size(manifest.annotation(Annotation.LOG_SIZE), "") if size_bytes is None else size_bytes


def plan_log_files(runtime: RuntimeApp, manifest: PodManifest) -> int | None:
    """Return how many log files of an app there may be, by its annotation or the pod's; None if neither says."""
    files = _read_files(runtime.annotation(Annotation.LOG_FILES), f'app "{runtime.name}": ')
    return _read_files(manifest.annotation(Annotation.LOG_FILES), "") if files is None else files


def plan_lost_output(runtime: RuntimeApp, manifest: PodManifest) -> bool:
    """Return whether the pod has failed if output of an app was lost, by its annotation or the pod's."""
    for where, owner in ((f'app "{runtime.name}": ', runtime), ("", manifest)):
        text = owner.annotation(Annotation.LOST_OUTPUT)
        if text not in (None, _FAIL, _IGNORE):
            raise PlanError(f'{where}annotation {Annotation.LOST_OUTPUT}: expected {_FAIL} or {_IGNORE}, got "{text}"')
        if text is not None:
            return text == _FAIL
    return True


def plan_kubernetes_directory(manifest: PodManifest) -> tuple[str | None, list[str]]:
    """Return the directory of the host that the log mode k8s-plain writes to, None in other modes, and warnings."""
    mode = manifest.annotation(ANNOTATION_LOG_MODE)
    if mode is None:
        return None, []
    if mode != _K8S_PLAIN:
        # rkt knows no other mode and says nothing.
        return None, [f'warning: annotation {ANNOTATION_LOG_MODE}: ignoring "{mode}", the one mode is {_K8S_PLAIN}']
    directory = manifest.annotation(ANNOTATION_KUBERNETES_DIRECTORY)
    if directory is None:
        raise PlanError(f"kubernetes-log-dir annotation needs to be specified when {_K8S_PLAIN} logging mode is used")
    if not directory.startswith("/") or "\0" in directory:
        expected = "expected the absolute path of a directory"
        raise PlanError(f'annotation {ANNOTATION_KUBERNETES_DIRECTORY}: {expected}, got "{directory}"')
    return directory, []


def plan_kubernetes_log(runtime: RuntimeApp) -> str | None:
    """
    Return the name of an app's file in the directory of k8s-plain; None without a stream for the file.

    PlanError without a name, or for a name elsewhere (stage1 contract 14.6).
    """
    if not any(runtime.annotation(ANNOTATION_STREAM + name) in _MODES for name in ("stdin", "stdout", "stderr")):
        return None
    where = f'app "{runtime.name}": '
    path = runtime.annotation(ANNOTATION_KUBERNETES_PATH)
    if path is None:
        raise PlanError(
            f"{where}kubernetes-log-path annotation needs to be specified when {_K8S_PLAIN} logging mode is used"
        )
    directory = STAGE1_KUBERNETES_LOG.split("/")[1:]
    *parent, name = _clean([*directory, *path.split("/")]) or [""]
    if parent != directory or "\0" in name:
        raise PlanError(f"{where}log path is not inside {STAGE1_KUBERNETES_LOG}, refusing path traversal")
    return name


def plan_log_directory(manifest: PodManifest, kubernetes: str | None) -> str | None:
    """
    Return the directory of the host for logs, by the log mode k8s-plain or the pod's own annotation.

    PlanError for both together.
    """
    directory = manifest.annotation(Annotation.LOG_DIRECTORY)
    if directory is None:
        return kubernetes
    if kubernetes is not None:
        raise PlanError(f"annotation {Annotation.LOG_DIRECTORY}: the log mode {_K8S_PLAIN} has another directory")
    if not directory.startswith("/") or "\0" in directory:
        expected = "expected the absolute path of a directory"
        raise PlanError(f'annotation {Annotation.LOG_DIRECTORY}: {expected}, got "{directory}"')
    return directory


def plan_log_path(runtime: RuntimeApp, manifest: PodManifest) -> str | None:
    """Return the path of an app's log below the pod's directory for logs, None for a log in the pod."""
    path = runtime.annotation(Annotation.LOG_PATH)
    if path is None:
        return None
    where = f'app "{runtime.name}": annotation {Annotation.LOG_PATH}: '
    if manifest.annotation(Annotation.LOG_DIRECTORY) is None:
        raise PlanError(f"{where}the pod has no annotation {Annotation.LOG_DIRECTORY}")
    if posixpath.normpath(path) != path or path.split("/")[0] in ("", ".", "..") or "\0" in path:
        raise PlanError(f'{where}expected a path below the directory, as in "web/0.log", got "{path}"')
    if any(other.annotation(Annotation.LOG_PATH) == path for other in manifest.apps if other.name != runtime.name):
        raise PlanError(f'{where}another app has its log at "{path}"')
    return path


def _clean(names: Sequence[str]) -> list[str]:
    """Return the names of an absolute path without `.` and `..`, as Go's filepath.Clean."""
    cleaned: list[str] = []
    for name in names:
        if name == "..":
            cleaned = cleaned[:-1]
        elif name not in ("", "."):
            cleaned.append(name)
    return cleaned


def _read_size(text: str | None, where: str) -> int | None:
    if text is None:
        return None
    expected = (
        f'{where}annotation {Annotation.LOG_SIZE}: expected a number of bytes such as "10Mi", '
        f'at least {_SMALLEST_BYTES // 1024}Ki, or "0" for no limit, got "{text}"'
    )
    try:
        size_bytes = -(-parse_quantity(text) // BILLION)
    except ValueError as error:
        raise PlanError(expected) from error
    if size_bytes and not _SMALLEST_BYTES <= size_bytes <= _LARGEST_BYTES:
        raise PlanError(expected)
    return size_bytes


def _read_files(text: str | None, where: str) -> int | None:
    if text is None:
        return None
    digits = text if text.isascii() and text.isdecimal() and len(text) <= len(str(_MOST_FILES)) else "0"
    if not 1 <= int(digits) <= _MOST_FILES:
        raise PlanError(
            f'{where}annotation {Annotation.LOG_FILES}: expected a number from 1 to {_MOST_FILES}, got "{text}"'
        )
    return int(digits)
