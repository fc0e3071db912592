"""The command that runs pods written for Kubernetes: play."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import click

from minit.base.errors import PodError, describe
from minit.cli.flags.sharedoptions import networks_option, no_overlay_option, quiet_option, stage1_path_option
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.text.progressdisplay import show_progress
from minit.kubernetes.documents import read_file
from minit.kubernetes.fields import Findings
from minit.kubernetes.play import Play, find_played, run_all, run_in_background
from minit.kubernetes.pods import KubernetesPod
from minit.kubernetes.references import Machine
from minit.linux.stdio import flush_output
from minit.podfiles.paths import SELINUX
from minit.pods.ending import cleanup_of, take_down
from minit.pods.requests import Stage1Request
from minit.stage0.files.yamltext import MAX_BYTES
from minit.stage0.images.store import Store
from minit.stage0.pods.poddirectory import PodState

PROFILES = "/var/lib/kubelet/seccomp"
"""Where a kubelet has them, and `podman kube play`."""

_STANDARD_INPUT = "-"


@click.command(cls=MinitCommand)
@click.option("--down", is_flag=True, help="Stop the pods that were made of the file, and remove them.")
@click.option("--replace", is_flag=True, help="Before, stop the pods that were made of the file, and remove them.")
@click.option("--detach", is_flag=True, help="Return once the pods run, and print their UUIDs.")
@click.option(
    "--ignore-unsupported",
    is_flag=True,
    help="Only warn of fields that are not supported, and run the pods without what they ask for.",
)
@click.option(
    "--seccomp-profile-root",
    metavar="DIR",
    default=PROFILES,
    help=f"Where profiles of system calls are that containers name (Localhost).  [default: {PROFILES}]",
)
@networks_option("Networks, as for run; not for pods with hostNetwork.")
@stage1_path_option
@no_overlay_option
@quiet_option
@click.argument("file", metavar="FILE")
@click.pass_obj
def play(
    invocation: Invocation,
    down: bool,
    replace: bool,
    detach: bool,
    ignore_unsupported: bool,
    seccomp_profile_root: str,
    net: tuple[str, ...],
    stage1_path: str | None,
    no_overlay: bool,
    quiet: bool,
    file: str,
) -> None:
    """
    They run in the foreground, as with run. Their images are those of the store, or else of a registry. A field that
    is not supported is an error that names it.

    \b
      minit play web.yaml
      minit play --detach web.yaml
      minit play --down web.yaml

    """
    invocation.require_root()
    if down and (replace or detach or net or stage1_path or no_overlay):
        raise click.UsageError("--down excludes the options about running")
    pods = _read(invocation, file, forgiving=ignore_unsupported or down, silent=down)
    if down:
        _take_down(invocation, pods)
        return
    if replace:
        _take_down(invocation, pods, silent=True)
    for pod in pods:
        _refuse_second(invocation, pod)
    how = Play(
        networks=net,
        stage1=Stage1Request(path=stage1_path),
        wants_overlay=not no_overlay,
        is_quiet=quiet,
        profiles=Path(seccomp_profile_root),
    )
    show = partial(show_progress, invocation, quiet=quiet)
    if detach:
        run_in_background(invocation.caller, pods, how, show, invocation.say)
        return
    code = run_all(invocation.caller, pods, how, show)
    flush_output()
    raise SystemExit(code)


def _read(invocation: Invocation, file: str, *, forgiving: bool, silent: bool) -> tuple[KubernetesPod, ...]:
    try:
        with open(0 if file == _STANDARD_INPUT else file, "rb", closefd=file != _STANDARD_INPUT) as opened:
            data = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise PodError(f"cannot read {describe(error)}") from error
    findings = Findings()
    machine = Machine(
        name=os.uname().nodename,
        cpus=os.cpu_count() or 1,
        memory_bytes=_memory_bytes(),
        has_selinux=os.path.exists(SELINUX),
    )
    pods = read_file(data, "standard input" if file == _STANDARD_INPUT else file, findings, machine)
    if not silent:
        for text in (*findings.notes, *(findings.unsupported if forgiving else ())):
            invocation.note(f"warning: {text}")
    if findings.unsupported and not forgiving:
        *others, last = findings.unsupported
        for text in others:
            invocation.note(text)
        raise PodError(f"{last} (--ignore-unsupported runs the pods without)")
    return pods


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _refuse_second(invocation: Invocation, pod: KubernetesPod) -> None:
    for uuid, state in find_played(invocation.data, pod.names):
        if state is PodState.RUNNING:
            raise PodError(f'Pod "{pod.names.name}" runs already, as pod {uuid} (`minit play --down` ends it)')


def _take_down(invocation: Invocation, pods: tuple[KubernetesPod, ...], *, silent: bool = False) -> None:
    with Store(invocation.data) as store, cleanup_of(invocation.caller, store) as cleanup:
        for pod in pods:
            found = find_played(invocation.data, pod.names)
            if not found and not silent:
                invocation.note(f'there is no pod of Pod "{pod.names.name}"')
            for uuid, _ in found:
                take_down(invocation.data, uuid, pod.grace_seconds, cleanup, invocation.note)
                if not silent:
                    invocation.say(f'"{uuid}"')
