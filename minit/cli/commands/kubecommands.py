"""The commands for Kubernetes YAML: play, and generate kube."""

from __future__ import annotations

import base64
import os
import re
import shutil
import stat
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import click
import yaml

from minit.base import jsontext
from minit.base.errors import MinitError, PodError, describe
from minit.cli.commands.cricommand import own_command
from minit.cli.flags.sharedoptions import networks_option, no_overlay_option, quiet_option, stage1_path_option
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.text.progressdisplay import show_progress
from minit.cli.text.services import container_quadlet, kube_quadlet, script_of_pod, unit_of_pod
from minit.cli.uuidfile import one_pod
from minit.kubernetes.documents import read_file
from minit.kubernetes.fields import Findings
from minit.kubernetes.generate import generate_pod, profile_files, volume_of_files
from minit.kubernetes.play import Play, find_played, run_all, run_in_background
from minit.kubernetes.pods import KubernetesPod
from minit.kubernetes.references import Machine
from minit.linux.stdio import flush_output
from minit.podfiles import paths
from minit.podfiles.paths import SELINUX
from minit.podfiles.usersdirectory import is_of_user
from minit.pods.ending import cleanup_of, take_down
from minit.pods.requests import Stage1Request
from minit.stage0.files.yamltext import MAX_BYTES
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage
from minit.stage0.pods.poddirectory import Pod, PodState, find_pod, read_name
from minit.stage0.pods.podstatus import read_pod_manifest
from minit.stage0.stage1.entrypoints import LastRun, read_last_run
from minit.stage0.start.run import RUN_RECORD

PROFILES = "/var/lib/kubelet/seccomp"
"""Where a kubelet has them, and `podman kube play`."""

_STANDARD_INPUT = "-"

_MOST_BYTES = 1 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*", re.ASCII)
# Words that are no strings to one reader or another.
_WORDS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")


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
    invocation.become_root(in_scope=True)
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


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
    def ignore_aliases(self, data: object) -> bool:
        """Write everything out."""
        return True


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_plain else '"')


_Dumper.add_representer(str, _write_text)


def write_documents(documents: Iterable[object]) -> str:
    """Return documents as the text of a file."""
    text: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=120)
    return text


@click.command(cls=MinitCommand)
@click.option(
    "--seccomp-profile-root", metavar="DIR", help="Write profiles of system calls there, as files that the Pod names."
)
@one_pod()
@click.pass_obj
def kube(invocation: Invocation, seccomp_profile_root: str | None, uuid: str) -> None:
    """
    Files of its ConfigMaps and Secrets become a Secret. What a Pod cannot say is a warning.

    \b
      minit generate kube web > web.yaml
      minit play web.yaml

    """
    invocation.become_root()
    with find_pod(invocation.data, uuid, invocation.note) as pod:
        invocation.say(_kube_text(invocation, pod, seccomp_profile_root), end="")


def _document(
    invocation: Invocation, pod: Pod, seccomp_profile_root: str | None
) -> tuple[dict[str, object], list[object]]:
    """Return a pod as a Pod, and the objects beside the Pod; profiles of system calls are written."""

    def warn(text: str) -> None:
        invocation.note(f"warning: {text}")

    with Store(invocation.data) as store:
        manifest = read_pod_manifest(pod)
        found = {app.name: _find_image(store, app.image_id or "") for app in manifest.apps}
        images = {app.name: _reference(store, found[app.name]) or app.image_id or "" for app in manifest.apps}
        sections = {name: image.manifest.app for name, image in found.items() if image is not None}
        users = {name: (section.user, section.group) for name, section in sections.items() if section is not None}
        name = read_name(pod.fd) or (manifest.apps[0].name if manifest.apps else "pod")
        name = name.lower().replace("_", "-").replace(".", "-")
        document: dict[str, object] = generate_pod(manifest, name, images, users, pod.data, _last_run(pod), warn)
        others: list[object] = [
            volume_of_files(document, volume.name, _files(pod, volume.name))
            for volume in manifest.volumes
            if volume.kind == "empty" and volume.read_only
        ]
        for path, text in profile_files(document, manifest).items():
            if seccomp_profile_root is None:
                warn(f"the Pod names a file with a profile of system calls, {path}: --seccomp-profile-root writes it")
            else:
                _write(Path(seccomp_profile_root, path), text)
    return document, others


def _kube_text(invocation: Invocation, pod: Pod, seccomp_profile_root: str | None = None) -> str:
    document, others = _document(invocation, pod, seccomp_profile_root)
    return write_documents([document, *others])


_files_option = click.option("--files", is_flag=True, help="Write to the working directory, and print the path.")


@click.command(cls=MinitCommand)
@_files_option
@one_pod()
@click.pass_obj
def systemd(invocation: Invocation, files: bool, uuid: str) -> None:
    """
    The pod must have run; it starts as the last time, with its files. The pod of a user without root becomes a unit of
    that user's systemd.

    \b
      cd /etc/systemd/system && minit generate systemd --files web
      systemctl enable minit-web
      cd ~/.config/systemd/user && minit generate systemd --files web
      systemctl --user enable minit-web; loginctl enable-linger

    """
    name, command = _start_command(invocation, uuid)
    unit = unit_of_pod(name, command, is_of_user=is_of_user())
    _deliver(invocation, {f"minit-{name}.service": unit}, files=files)


@click.command(cls=MinitCommand)
@_files_option
@one_pod()
@click.pass_obj
def openrc(invocation: Invocation, files: bool, uuid: str) -> None:
    """
    The pod must have run; it starts as the last time, with its files.

    \b
      cd /etc/init.d && minit generate openrc --files web
      rc-update add minit-web

    """
    invocation.require_root()
    name, command = _start_command(invocation, uuid)
    _deliver(invocation, {f"minit-{name}": script_of_pod(name, command)}, files=files, mode=0o755)


@click.command(cls=MinitCommand)
@_files_option
@one_pod()
@click.pass_obj
def quadlet(invocation: Invocation, files: bool, uuid: str) -> None:
    """
    A pod of one app becomes a .container file, of several apps a .kube file with the YAML beside it. podman runs these;
    minit does not read them. What they cannot say is a warning.

    \b
      minit generate quadlet web > web.container

    """
    invocation.become_root()
    with find_pod(invocation.data, uuid, invocation.note) as pod:
        name = read_name(pod.fd) or pod.uuid
        if len(read_pod_manifest(pod).apps) == 1:
            document, _ = _document(invocation, pod, None)
            text = container_quadlet(name, document, lambda text: invocation.note(f"warning: {text}"))
            texts = {f"{name}.container": text}
        else:
            texts = {f"{name}.kube": kube_quadlet(name), f"{name}.yaml": _kube_text(invocation, pod)}
    if len(texts) > 1 and not files:
        invocation.note(f"{name}.yaml is what minit generate kube {name} prints; --files writes both")
        texts.pop(f"{name}.yaml")
    _deliver(invocation, texts, files=files)


def _start_command(invocation: Invocation, uuid: str) -> tuple[str, list[str]]:
    """Return a name of a pod for files, and the words that start the pod in the foreground."""
    invocation.become_root()
    with find_pod(invocation.data, uuid, invocation.note) as pod:
        name = read_name(pod.fd) or pod.uuid
        if not pod.has_file(RUN_RECORD):
            raise PodError(f'pod "{pod.uuid}" has not run yet: a service starts it as the last time')
    data, local_config, by_default = invocation.data, invocation.local_config, Invocation()
    where = [] if data == by_default.data else [f"--dir={data}"]
    where += [] if local_config == by_default.local_config else [f"--local-config={os.path.abspath(local_config)}"]
    program, *words = own_command()
    return name, [shutil.which(program) or os.path.abspath(program), *words, *where, "start", "--attach", name]


def _deliver(invocation: Invocation, texts: dict[str, str], *, files: bool, mode: int = 0o644) -> None:
    for file_name, text in texts.items():
        if not files:
            invocation.say(text, end="")
            continue
        _write(Path(file_name), text.removesuffix("\n"))
        os.chmod(file_name, mode)
        invocation.say(os.path.abspath(file_name))


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    except OSError as error:
        raise PodError(f"cannot write {describe(error)}") from error


def _last_run(pod: Pod) -> LastRun | None:
    """Return the options of the last run of a pod, None if there is no record of any."""
    try:
        words = jsontext.parse(pod.read_file(RUN_RECORD), RUN_RECORD)
        return read_last_run([str(word) for word in words] if isinstance(words, list) else [])
    except (FileNotFoundError, MinitError):
        return None


def _find_image(store: Store, image_id: str) -> StoredImage | None:
    try:
        return store.find(image_id)
    except MinitError:
        return None


def _reference(store: Store, image: StoredImage | None) -> str | None:
    """Return the name of an image by which the store finds it; None without one."""
    if image is None:
        return None
    version = dict(image.manifest.labels).get("version")
    for reference in (f"{image.name}:{version}", image.name):
        try:
            if store.find(reference).id == image.id:
                return reference
        except MinitError:
            continue
    return None


def _files(pod: Pod, volume: str) -> list[tuple[str, int, str]]:
    """Return the files of a volume that no app can write: path, mode, and what they hold, in base64."""
    top = pod.path / paths.POD_SHARED_VOLUMES / volume
    found = []
    left = _MOST_BYTES
    for directory, _, names in sorted(os.walk(top)):
        for name in sorted(names):
            path = Path(directory, name)
            fd = os.open(path, _READ)
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode) or status.st_size > left:
                    raise PodError(f'volume "{volume}": {path}: no file that a Secret can hold')
                left -= status.st_size
                data = os.read(fd, _MOST_BYTES)
            finally:
                os.close(fd)
            encoded = base64.b64encode(data).decode("ascii")
            found.append((str(path.relative_to(top)), stat.S_IMODE(status.st_mode), encoded))
    return found
