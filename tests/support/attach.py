"""Pods whose apps can be attached to, and the `attach` entrypoint in front of a terminal or between pipes."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

from tests.support.pods import MakePod, PodDirectory, shell
from tests.support.terminal import Terminal
from tests.support.waiting import wait_for

APP = "web"
TERMINAL = {"stdin": "tty", "stdout": "tty", "stderr": "tty"}
STREAMS = {"stdin": "stream", "stdout": "stream", "stderr": "stream"}


def start_app(
    make_pod: MakePod, script: str, streams: dict[str, str], terminal: Terminal | None = None, **fields: Any
) -> PodDirectory:
    """Start a pod of one app with these modes of its streams, at a terminal, and return when it can be attached to."""
    annotations = [{"name": f"coreos.com/rkt/stage2/{name}", "value": mode} for name, mode in streams.items()]
    pod = make_pod({APP: shell(script, annotations=annotations, **fields)})
    pod.start(**({} if terminal is None else terminal.options))
    wait_for((pod.stage1 / "rkt/iottymux" / APP / "endpoints").exists, "the endpoints")
    return pod


def attach_words(pod: PodDirectory, *flags: str, action: str = "auto-attach") -> list[str]:
    """Return the command line by which rkt executes the entrypoint, in the pod directory."""
    return [pod.entrypoint("attach"), f"--action={action}", f"--app={APP}", "--debug=false", *flags]


def attach(
    pod: PodDirectory, *flags: str, terminal: Terminal | None = None, action: str = "auto-attach", **options: Any
) -> subprocess.Popen[bytes]:
    """Start the entrypoint in front of a terminal, or with what `options` say for its streams."""
    streams = terminal.options if terminal is not None else {}
    return subprocess.Popen(attach_words(pod, *flags, action=action), cwd=pod.path, **{**streams, **options})


def kill_sidecar(pod: PodDirectory) -> None:
    """Kill the app's sidecar, and return when it is gone."""
    pid = wait_for(lambda: pod.children().get(f"iottymux-{APP}", 0), "the sidecar")
    pidfd = os.pidfd_open(pid)
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"), "the end of the sidecar")
    os.close(pidfd)
