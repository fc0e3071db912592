"""The settings of a pod that a Pod of Kubernetes cannot say: each is worth a warning when the Pod is written down."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from minit.manifest.annotations import OWN
from minit.manifest.app import OOM_SCORE_ADJ, SECCOMP_REMOVE, SECCOMP_RETAIN
from minit.manifest.pod import PodManifest, RuntimeApp, Volume
from minit.manifest.seccomp import EVERY_CALL
from minit.podfiles import paths
from minit.stage0.stage1.entrypoints import DEFAULT_NETWORK, LastRun

_EMPTY_MODES = (None, "0755", "0777", "2777", "2775")


def warn_of_unsaid(
    manifest: PodManifest,
    run: LastRun | None,
    said: frozenset[str],
    users: Mapping[str, tuple[str, str]],
    warn: Callable[[str], None],
) -> None:
    """
    Give a line to `warn` for each.

    `run` are the options of the pod's run, `said` the annotations of apps that the Pod says, `users` are user and group
    of the apps' images, by app.
    """
    for app in manifest.apps:
        for text in _of_app(app, said, users.get(app.name, ())):
            warn(f'app "{app.name}": {text}')
    groups = {app.app.supplementary_gids for app in manifest.apps if app.app is not None}
    if len(groups) > 1:
        warn("apps have different supplementary groups: a Pod has the same for all containers")
    for volume in manifest.volumes:
        for text in _of_volume(volume):
            warn(f'volume "{volume.name}": {text}')
    if manifest.isolators:
        warn("isolators of the whole pod have no place in a Pod")
    for text in _of_run(run) if run is not None else ():
        warn(text)


def _of_app(runtime: RuntimeApp, said: frozenset[str], of_image: tuple[str, ...]) -> Iterator[str]:
    app = runtime.app
    assert app is not None
    if app.event_handlers:
        yield "event handlers have no place in a Pod"
    for what, text in (("user", app.user), ("group", app.group)):
        if not text.isdecimal() and text not in of_image:
            yield f'a Pod has numbers, not the {what} "{text}": it leaves the {what} to the image'
    for isolator in app.isolators:
        names = isolator.value.get("set") if isinstance(isolator.value, dict) else None
        if isolator.name == OOM_SCORE_ADJ:
            yield "a Pod has no oom_score_adj"
        if isolator.name == SECCOMP_REMOVE or (isolator.name == SECCOMP_RETAIN and names != [EVERY_CALL]):
            yield "a Pod has no list of system calls"
    for name, _ in runtime.annotations:
        if name.startswith(OWN) and name not in said:
            yield f"the annotation {name} has no place in a Pod"
    for stream in ("stdout", "stderr"):
        if runtime.annotation(paths.ANNOTATION_STREAM + stream) == "null":
            yield f"a Pod cannot throw {stream} away"


def _of_volume(volume: Volume) -> Iterator[str]:
    if paths.tree_of_source(volume.source or "") is not None:
        yield "its image is a path of this host"
    if volume.recursive is False:
        yield "a Pod has the mounts below it, too"
    if volume.kind == "empty" and (volume.mode not in _EMPTY_MODES or volume.uid):
        yield "everybody may write an empty volume of a Pod"


def _of_run(run: LastRun) -> Iterator[str]:
    if not run.has_host_network and run.networks not in ((), (DEFAULT_NETWORK,)):
        yield f"networks are an option of play, too: --net={','.join(run.networks)}"
    if run.is_insecure:
        yield "--insecure-options has no place in a Pod"
    if run.has_names:
        yield "name servers and entries of /etc/hosts are not in the Pod"
