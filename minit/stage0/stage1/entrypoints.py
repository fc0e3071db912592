"""
Stage1's entrypoints: the annotations that declare entrypoints, and the exact words of each call.

A stage1 is a black box behind the annotations of the image manifest; the copy in the pod directory counts, which was
written when the pod was prepared.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

from minit.base.errors import ManifestError, PodError, describe
from minit.base.goduration import format_duration
from minit.base.value import Value
from minit.linux.process import ending_with_caller
from minit.manifest.image import ImageManifest, parse_image_manifest
from minit.podfiles import paths
from minit.podfiles.enterchanges import CHANGES, NO_CHANGES, EnterChanges
from minit.stage0.pods.nameservice import NameService
from minit.stage0.pods.poddirectory import Note, Pod

# The first interface version with each flag.                            rkt, stage1 implementor's guide
_HOSTNAME_VERSION = 2
_DISABLE_VERSION = 3
_DNS_VERSION = 4
_GC_LOCAL_CONFIG_VERSION = 5
_IPC_VERSION = 6

_ENDING_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)

DEFAULT_NETWORK = "default"

_MUTABLE_ENTRYPOINTS = ("app/add", "app/start", "app/stop", "app/rm")

# In the order of rkt's arguments.
_ATTACH_STREAMS = ("tty-in", "tty-out", "stdin", "stdout", "stderr")
_TERMINAL_STREAMS = {"tty-in", "tty-out"}
_ATTACH_WORDS = {"tty": ("tty-in", "tty-out"), **{stream: (stream,) for stream in _ATTACH_STREAMS}}

_HOST = "host"
_INSECURE = ("disable-capabilities-restriction", "disable-paths", "disable-seccomp")


class RunOptions(Value):
    """The options of a pod's run."""

    debug: bool = False
    networks: tuple[str, ...] = ()
    """Entries of --net; empty is the default network."""
    interactive: bool = False
    local_config: str = "/etc/rkt"
    hostname: str | None = None
    name_service: NameService = NameService()
    disable_capabilities_restriction: bool = False
    disable_paths: bool = False
    disable_seccomp: bool = False
    ipc: str | None = None
    mutable: bool = False
    """True if apps may be added to the pod, so that it may be empty."""
    quiet: bool = False
    """True if a stage1 with the option `quiet` reports nothing but errors."""


def read_stage1_manifest(pod: Pod) -> ImageManifest:
    """Return the manifest of the stage1 image the pod was prepared with."""
    data = pod.read_file(paths.POD_STAGE1_MANIFEST)
    try:
        return _parse_manifest(data)
    except ManifestError:
        return parse_image_manifest(data, str(pod.path / paths.POD_STAGE1_MANIFEST))  # an error with the file


@lru_cache(maxsize=8)
def _parse_manifest(data: bytes) -> ImageManifest:
    """Return the manifest in `data`, which most pods have in common."""
    return parse_image_manifest(data, "manifest")


def declared_path(manifest: ImageManifest, entrypoint: str) -> str | None:
    """Return the path of an entrypoint relative to stage1's root, None if the image declares none."""
    value = manifest.annotation(paths.ANNOTATION_STAGE1 + entrypoint)
    return value.lstrip("/") if value else None


def require_path(manifest: ImageManifest, entrypoint: str) -> str:
    """Return the path of an entrypoint relative to stage1's root; PodError if the image declares none."""
    path = declared_path(manifest, entrypoint)
    if path is None:
        raise PodError(
            f'stage1 image "{manifest.name}" declares no "{entrypoint}" entrypoint '
            f"(annotation {paths.ANNOTATION_STAGE1}{entrypoint})"
        )
    return path


def require_mutable_support(manifest: ImageManifest) -> None:
    """Raise PodError unless the image declares the entrypoints for the apps of a running pod."""
    if any(declared_path(manifest, entrypoint) is None for entrypoint in _MUTABLE_ENTRYPOINTS):
        raise PodError(
            f'stage1 does not support mutable pods: stage1 image "{manifest.name}" does not declare all of the'
            f" entrypoints {', '.join(_MUTABLE_ENTRYPOINTS)}"
        )


def interface_version(manifest: ImageManifest) -> int:
    """Return the version of rkt's stage1 interface in the image; PodError if the text is no number."""
    text = manifest.annotation(paths.ANNOTATION_INTERFACE_VERSION)
    if text is None:
        return 1
    if not (text.isascii() and text.isdigit()):
        raise PodError(f'stage1 image "{manifest.name}": interface version "{text}" is no number')
    return int(text)


def run_arguments(
    options: RunOptions, uuid: str, manifest: ImageManifest, private_users: str | None, note: Note
) -> list[str]:
    """Return the arguments of `run` in rkt's order; flags that the image's version lacks are noted and left out."""
    version = interface_version(manifest)
    words = []

    def add_since(needed: int, word: str, what: str) -> None:
        if version >= needed:
            words.append(word)
        else:
            note(f"warning: {what} no effect, stage1's interface version {version} is below {needed}")

    if options.debug:
        words.append("--debug")
    words.append(f"--net={','.join(options.networks) or DEFAULT_NETWORK}")
    if options.interactive:
        words.append("--interactive")
    if private_users:
        words.append(f"--private-users={private_users}")
    words.append(f"--local-config={options.local_config}")
    if options.hostname:
        add_since(_HOSTNAME_VERSION, f"--hostname={options.hostname}", "--hostname has")
    if not options.name_service.is_default:
        modes = f"resolv={options.name_service.resolv},hosts={options.name_service.hosts}"
        add_since(_DNS_VERSION, f"--dns-conf-mode={modes}", "the options for DNS and hosts have")
    if version >= _DISABLE_VERSION:
        if options.disable_capabilities_restriction:
            words.append("--disable-capabilities-restriction")
        if options.disable_paths:
            words.append("--disable-paths")
        if options.disable_seccomp:
            words.append("--disable-seccomp")
    if options.mutable:
        words.append("--mutable")
    # The user at the pod's terminal has seen the end of the app.
    own = "quiet" if options.quiet else None if options.interactive else "tell-failure"
    if own in (manifest.annotation(paths.ANNOTATION_RUN_OPTIONS) or "").split(","):
        words.append(f"--{own}")
    if options.ipc:
        add_since(_IPC_VERSION, f"--ipc={options.ipc}", "--ipc has")
    words.append(uuid)
    return words


def enter_arguments(
    pid: int,
    app: str,
    command: Sequence[str],
    *,
    privileged: bool,
    as_app: bool,
    timeout_seconds: float | None,
    failure_fd: int | None = None,
    changes: EnterChanges = NO_CHANGES,
) -> list[str]:
    """Return the arguments of `enter`; the keywords are extensions of minit's own stage1."""
    words = [f"--pid={pid}", f"--appname={app}"]
    words += ["--privileged"] if privileged else []
    words += ["--as-app"] if as_app else []
    words += [] if timeout_seconds is None else [f"--timeout={format_duration(timeout_seconds)}"]
    words += [] if failure_fd is None else [f"--failure-fd={failure_fd}"]
    words += [] if changes == NO_CHANGES else [f"--changes={os.fsdecode(CHANGES.encode(changes))}"]
    return [*words, "--", *command]


def gc_flags(version: int, *, debug: bool, local_config: str) -> list[str]:
    """Return the arguments of `gc` before the UUID."""
    words = ["--debug"] if debug else []
    # Two words here, where `run` has one.
    if version >= _GC_LOCAL_CONFIG_VERSION:
        words += ["--local-config", local_config]
    return words


def stop_arguments(uuid: str, *, force: bool) -> list[str]:
    """Return the arguments of `stop`."""
    return ["--force", uuid] if force else [uuid]


def app_add_arguments(uuid: str, app: str, *, debug: bool) -> list[str]:
    """Return the arguments of `app/add`."""
    return [f"--debug={_boolean(debug)}", f"--uuid={uuid}", f"--app={app}"]


def app_arguments(app: str, *, debug: bool) -> list[str]:
    """Return the arguments of `app/start` and `app/rm`."""
    return [f"--debug={_boolean(debug)}", f"--app={app}"]


def app_stop_arguments(app: str, grace_seconds: float | None, *, debug: bool) -> list[str]:
    """Return the arguments of `app/stop`; a grace period is an extension of minit's own stage1."""
    timeout = [] if grace_seconds is None else [f"--timeout={format_duration(grace_seconds)}"]
    return [*app_arguments(app, debug=debug), *timeout]


def attach_arguments(mode: str, app: str, options: Sequence[str], *, debug: bool) -> list[str]:
    """
    Return the arguments of `attach` for rkt's --mode; `options` are flags of some stage1 images.

    PodError for a mode with no streams, unknown streams, or a terminal together with single streams.
    """
    rest = [f"--app={app}", f"--debug={_boolean(debug)}", *options]
    if mode == "list":
        return ["--action=list", *rest]
    if mode in ("", "auto"):
        return ["--action=auto-attach", *rest]
    chosen: set[str] = set()
    for word in mode.split(","):
        if word not in _ATTACH_WORDS:
            raise PodError(f'invalid attach mode: unknown endpoint "{word}"')
        chosen.update(_ATTACH_WORDS[word])
    if chosen & _TERMINAL_STREAMS and chosen - _TERMINAL_STREAMS:
        raise PodError(
            f'invalid attach mode: incompatible endpoints "{mode}", cannot simultaneously attach TTY and streams'
        )
    flags = [f"--{stream}={_boolean(stream in chosen)}" for stream in _ATTACH_STREAMS]
    return ["--action=custom-attach", *flags, *rest]


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def execute(program: Path, arguments: Sequence[str], environment: dict[str, str]) -> NoReturn:
    """Become an entrypoint; PodError if the program cannot be executed."""
    _restore_signals()
    try:
        os.execve(program, [str(program), *arguments], environment)
    except OSError as error:
        raise PodError(f"cannot execute stage1's entrypoint {program}: {describe(error)}") from error


def _restore_signals() -> None:
    """Restore the signal dispositions that Python's start-up and the command changed, for the next program."""
    # Signals that Python ignores stay ignored across execve(2).
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    # Python notes a caught signal until the next bytecode, which execve(2) would never reach: a signal that is blocked
    # meanwhile stays pending, and then acts on this process as without Python.
    caught = [number for number in _ENDING_SIGNALS if callable(signal.getsignal(number))]
    signal.pthread_sigmask(signal.SIG_BLOCK, caught)
    for number in caught:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, caught)


def call(program: Path, arguments: Sequence[str], directory: Path, *, show_stdout: bool) -> int:
    """Run an entrypoint in `directory` without standard input and return the exit code; OSError if the start fails."""
    return subprocess.run(
        [str(program), *arguments],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=None if show_stdout else subprocess.DEVNULL,
        preexec_fn=ending_with_caller(),
        check=False,
    ).returncode


class LastRun(Value):
    """
    The options of a pod's last run, by the arguments of `run_arguments`; `networks` are the entries of --net.

    `has_names` is about given name servers or hosts, `is_insecure` about a missing protection.
    """

    networks: tuple[str, ...] = ()
    hostname: str = ""
    ipc: str = ""
    interactive: bool = False
    private_users: bool = False
    has_names: bool = False
    is_insecure: bool = False

    @property
    def has_host_network(self) -> bool:
        """Tell whether the pod was in the network of the host."""
        return _HOST in self.networks


def read_last_run(words: Sequence[str]) -> LastRun:
    """Return the options in the arguments of a run."""
    given = dict(word.removeprefix("--").partition("=")[::2] for word in words if word.startswith("--"))
    return LastRun(
        networks=tuple(entry for entry in given.get("net", "").split(",") if entry),
        hostname=given.get("hostname", ""),
        ipc=given.get("ipc", ""),
        interactive="interactive" in given,
        private_users="private-users" in given,
        has_names="dns-conf-mode" in given,
        is_insecure=any(name in given for name in _INSECURE),
    )
