"""A pod directory as planning gets it."""

from __future__ import annotations

from minit.base.errors import PlanError
from minit.base.value import Value
from minit.manifest.annotations import Annotation
from minit.manifest.app import App
from minit.manifest.image import ImageManifest
from minit.manifest.networkconfig import NetworkConfig
from minit.manifest.pod import PodManifest, RuntimeApp
from minit.plan.rights.users import AppLookups
from minit.plan.root.etcfiles import EtcTexts


class Pod(Value):
    """
    A pod directory as loaded: its manifest, of each app by name the image manifest and what was looked up in its
    root, the texts that stage0 or the stage1 image has for files of /etc, and the networks there are to join.

    `has_unmapped_overlay` tells that the files of a pod with private users belong to the host's root. `first` is the
    place in the file of the first app in `manifest`, which is but one of several for an app that is added.
    """

    manifest: PodManifest
    images: tuple[tuple[str, ImageManifest], ...]
    lookups: tuple[tuple[str, AppLookups], ...] = ()
    texts: EtcTexts = EtcTexts()
    networks: tuple[NetworkConfig, ...] = ()
    has_unmapped_overlay: bool = False
    first: int = 0


def app_section(runtime: RuntimeApp, image: ImageManifest) -> App:
    """Return what describes an app: the pod's section, which replaces the image's as a whole (appc spec, pods.md)."""
    app = runtime.app or image.app
    if app is None:
        raise PlanError(f'app "{runtime.name}" has no executable: neither the pod nor image {image.name} has an app')
    return app


def has_isolators(pod: Pod) -> bool:
    """Tell whether anybody asks for more or less isolation than there is by default."""
    images = dict(pod.images)
    sections = [app_section(runtime, images[runtime.name]) for runtime in pod.manifest.apps]
    annotations = [pod.manifest.annotations, *(runtime.annotations for runtime in pod.manifest.apps)]
    return (
        bool(pod.manifest.isolators)
        or any(app.isolators for app in sections)
        or any(name in (Annotation.LIMITS, Annotation.PIDS_LIMIT) for pairs in annotations for name, _ in pairs)
    )
