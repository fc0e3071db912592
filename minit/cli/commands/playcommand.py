"""The command that runs pods written for Kubernetes: play."""

from __future__ import annotations

import os
import subprocess
import sys

import click

from minit.archives.transports import is_source
from minit.cli.commands.endingcommands import cleanup_of
from minit.cli.commands.podrequest import choose_overlay
from minit.cli.commands.runcommands import collect_run_options
from minit.cli.commands.stage1choice import choose_stage1
from minit.cli.flags.sharedoptions import no_overlay_option, quiet_option, stage1_path_option
from minit.cli.grammar import MinitCommand, OptionalValue
from minit.cli.invocation import Invocation, flush_output
from minit.cli.text.progressdisplay import show_progress
from minit.errors import MinitError, PodError, describe
from minit.progress import Progress
from minit.stage0.images.imagechoice import image_file, resolve_image
from minit.stage0.images.pullpolicy import PullPolicy
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage
from minit.stage0.images.treestore import TreeStore
from minit.stage0.kubernetes.fields import Findings
from minit.stage0.kubernetes.manifest import plan_kubernetes_pod
from minit.stage0.kubernetes.playedpods import find_played, take_down, wait_until_running
from minit.stage0.kubernetes.pods import KubernetesPod, read_file
from minit.stage0.kubernetes.yamltext import MAX_BYTES
from minit.stage0.pods.poddirectory import Pod, PodState
from minit.stage0.pods.podmanifest import PlannedApp
from minit.stage0.stage1.entrypoints import DEFAULT_NETWORK
from minit.stage0.start.newpod import PodRequest, discarded_on_failure, finish, prepare_pod
from minit.stage0.start.run import run_pod
from minit.stage0.start.volumefiles import prepare_host_paths, write_volume_files

_STANDARD_INPUT = "-"


@click.command(cls=MinitCommand)
@click.option("--down", is_flag=True, help="Stop the pods that were made of the file, and remove them.")
@click.option("--detach", is_flag=True, help="Return once the pods run, and print their UUIDs.")
@click.option(
    "--ignore-unsupported",
    is_flag=True,
    help="Only warn of fields that are not supported, and run the pods without what they ask for.",
)
@click.option(
    "--net",
    cls=OptionalValue,
    bare=DEFAULT_NETWORK,
    multiple=True,
    metavar="LIST",
    help=f"Networks, as for run; not for pods with hostNetwork.  [default: {DEFAULT_NETWORK}]",
)
@stage1_path_option
@no_overlay_option
@quiet_option
@click.argument("file", metavar="FILE")
@click.pass_obj
def play(
    invocation: Invocation,
    down: bool,
    detach: bool,
    ignore_unsupported: bool,
    net: tuple[str, ...],
    stage1_path: str | None,
    no_overlay: bool,
    quiet: bool,
    file: str,
) -> None:
    """
    Run the Pods of a Kubernetes YAML file, which may hold ConfigMaps and Secrets too; `-` is standard input.

    A single Pod runs in the foreground, as with run. Its images are those of the store, or else of a registry. A
    field that is not supported is an error that names it.

    \b
      minit play web.yaml
      minit play --detach web.yaml
      minit play --down web.yaml

    """
    invocation.require_root()
    if down and (detach or net or stage1_path or no_overlay):
        raise click.UsageError("--down excludes the options about running")
    pods = _read(invocation, file, forgiving=ignore_unsupported or down, silent=down)
    if down:
        _take_down(invocation, pods)
        return
    if len(pods) > 1 and not detach:
        raise click.UsageError(f"{file} has {len(pods)} Pods: only one can run in the foreground (try --detach)")
    for pod in pods:
        _refuse_second(invocation, pod)
    for pod in pods:
        _play(invocation, pod, net, stage1_path, detach=detach, no_overlay=no_overlay, quiet=quiet)


def _read(invocation: Invocation, file: str, *, forgiving: bool, silent: bool) -> tuple[KubernetesPod, ...]:
    try:
        with open(0 if file == _STANDARD_INPUT else file, "rb", closefd=file != _STANDARD_INPUT) as opened:
            data = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise PodError(f"cannot read {describe(error)}") from error
    findings = Findings()
    pods = read_file(data, "standard input" if file == _STANDARD_INPUT else file, findings)
    if not forgiving:
        findings.check()
    if not silent:
        for text in (*(f"{field} is not supported" for field in findings.unsupported), *findings.notes):
            invocation.note(f"warning: {text}")
    return pods


def _refuse_second(invocation: Invocation, pod: KubernetesPod) -> None:
    for uuid, state in find_played(invocation.data, pod.names):
        if state is PodState.RUNNING:
            raise PodError(f'Pod "{pod.names.name}" runs already, as pod {uuid} (`minit play --down` ends it)')


def _play(
    invocation: Invocation,
    kubernetes: KubernetesPod,
    net: tuple[str, ...],
    stage1_path: str | None,
    *,
    detach: bool,
    no_overlay: bool,
    quiet: bool,
) -> None:
    options = _run_options(kubernetes, net)
    how = collect_run_options(invocation, options)
    with Store(invocation.data) as store:
        trees = TreeStore(invocation.data, store)
        with show_progress(invocation, quiet=quiet) as progress:
            with_overlay = choose_overlay(invocation, no_overlay=no_overlay, private_users=False)
            put_stage1 = choose_stage1(invocation, store, stage1_path, None)
            apps, manifest = _plan(invocation, store, kubernetes, progress)
            request = PodRequest(stage1=put_stage1(progress), apps=apps, manifest_bytes=manifest, overlay=with_overlay)
            prepare_host_paths(kubernetes.volumes)
            pod = prepare_pod(invocation.data, store, trees, request, progress, lambda uuid: None)
        with discarded_on_failure(pod):
            write_volume_files(pod, kubernetes.volumes)
            if not detach:
                run_pod(pod, trees, how, invocation.note, flush_output)
        with pod:
            finish(pod)
    _run_in_background(invocation, pod, options)


def _run_options(pod: KubernetesPod, net: tuple[str, ...]) -> dict[str, object]:
    """Return what the options of run-prepared would hold."""
    if pod.host_network and net:
        raise click.UsageError(f'--net: Pod "{pod.names.name}" has the network of the host (hostNetwork)')
    return {
        "net": ("host",) if pod.host_network else net,
        "hostname": None if pod.host_network else pod.hostname,
        "dns": ("host",) if pod.dns.host else pod.dns.servers,
        "dns_search": pod.dns.searches,
        "dns_opt": pod.dns.options,
        "dns_domain": None,
        "hosts_entry": tuple(f"{address}={name}" for address, name in pod.hosts),
        "interactive": False,
        "ipc": "parent" if pod.host_ipc else None,
    }


def _plan(
    invocation: Invocation, store: Store, pod: KubernetesPod, progress: Progress
) -> tuple[tuple[PlannedApp, ...], bytes]:
    containers = (*pod.init_containers, *pod.containers)
    images = {
        container.name: _find_image(invocation, store, container.image, container.pull_policy, progress)
        for container in containers
    }
    return plan_kubernetes_pod(pod, images, os.getuid(), os.getgid(), invocation.data, invocation.insecure)


def _find_image(
    invocation: Invocation, store: Store, reference: str, policy: str | None, progress: Progress
) -> StoredImage:
    """Return the image of a reference as minit has them, or else of one to a registry, which need not say so."""
    chosen = {"Always": PullPolicy.UPDATE, "Never": PullPolicy.NEVER}.get(policy or "", PullPolicy.NEW)
    verify_tls = invocation.verifies_tls
    if is_source(reference) or image_file(reference) is not None:
        return resolve_image(store, reference, progress, chosen, verify_tls=verify_tls)
    if policy != "Always":
        try:
            return store.find(reference)
        except MinitError:
            if reference.startswith("sha512-"):
                raise
    return resolve_image(store, f"docker://{reference}", progress, chosen, verify_tls=verify_tls)


def _run_in_background(invocation: Invocation, pod: Pod, options: dict[str, object]) -> None:
    command = [sys.executable, "-m", "minit", *_global_options(invocation), "run-prepared"]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        values = value if isinstance(value, tuple) else () if value in (None, False) else (value,)
        command += [f"{flag}={each}" for each in values]
    process = subprocess.Popen(
        [*command, pod.uuid],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stderr is not None
    try:
        wait_until_running(invocation.data, pod.uuid, lambda: process.poll() is not None)
    except PodError as error:
        said = process.stderr.read().decode(errors="replace").strip().splitlines() if process.poll() is not None else []
        raise PodError(said[-1] if said else str(error)) from error
    finally:
        # Output from now on has nobody to read it; the logs have it too.
        process.stderr.close()
    invocation.say(pod.uuid)


def _global_options(invocation: Invocation) -> list[str]:
    words = [f"--dir={invocation.data}", f"--local-config={invocation.local_config}"]
    words += ["--debug"] if invocation.debug else []
    return [*words, f"--insecure-options={','.join(sorted(invocation.insecure))}"] if invocation.insecure else words


def _take_down(invocation: Invocation, pods: tuple[KubernetesPod, ...]) -> None:
    with Store(invocation.data) as store, cleanup_of(invocation, store) as cleanup:
        for pod in pods:
            found = find_played(invocation.data, pod.names)
            if not found:
                invocation.note(f'there is no pod of Pod "{pod.names.name}"')
            for uuid, _ in found:
                take_down(invocation.data, uuid, pod.grace_seconds, cleanup, invocation.note)
                invocation.say(f'"{uuid}"')
