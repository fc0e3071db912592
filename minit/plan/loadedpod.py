"""A pod directory as loaded, and what the plan of a pod and of an app starts from."""

from __future__ import annotations

from minit.base.errors import PlanError
from minit.base.idrange import HeldIds, IdRange
from minit.base.value import Value
from minit.manifest.annotations import Annotation
from minit.manifest.app import App
from minit.manifest.image import ImageManifest
from minit.manifest.networkconfig import NetworkConfig
from minit.manifest.pod import PodManifest, RuntimeApp
from minit.plan.inputs.hostfacts import HostFacts
from minit.plan.inputs.runflags import RunFlags
from minit.plan.inputs.switches import is_set
from minit.plan.rights.users import AppLookups
from minit.plan.root.devicevolumes import plan_hotplug
from minit.plan.root.etcfiles import EtcTexts
from minit.plan.root.volumes import VolumeMount


class Pod(Value):
    """A pod directory as loaded."""

    manifest: PodManifest
    images: tuple[tuple[str, ImageManifest], ...]
    """The image manifest of each app by name."""
    lookups: tuple[tuple[str, AppLookups], ...] = ()
    """The facts about users from the root of each app by name."""
    texts: EtcTexts = EtcTexts()
    """The texts of stage0 or the stage1 image for files of /etc."""
    networks: tuple[NetworkConfig, ...] = ()
    """The networks that the pod can join."""
    has_unmapped_overlay: bool = False
    """Whether the files of a pod with private users belong to the host's root."""
    first: int = 0
    """The place in the file of the first app in `manifest`; an added app is alone in `manifest`."""


def app_section(runtime: RuntimeApp, image: ImageManifest) -> App:
    """Return the section of an app: the pod's section replaces the image's as a whole (appc spec, pods.md)."""
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


class PodInput(Value):
    """A pod before the plan, with the facts shared by all apps."""

    loaded: Pod
    flags: RunFlags
    facts: HostFacts
    mapped: IdRange | None = None
    """The ids of the pod's user namespace, None without one."""
    joined: bool = False
    """Whether the pod runs, and has joined its networks already."""

    @property
    def manifest(self) -> PodManifest:
        """The pod manifest."""
        return self.loaded.manifest

    @property
    def held(self) -> HeldIds | None:
        """The ids of the caller's user namespace that apps of the pod have; None for every id, or with `mapped` ids."""
        return self.facts.held_ids if self.mapped is None else None

    @property
    def images(self) -> list[ImageManifest]:
        """The image manifest of each app."""
        images = dict(self.loaded.images)
        return [images[runtime.name] for runtime in self.manifest.apps]

    @property
    def sections(self) -> list[App]:
        """The section of each app."""
        return [app_section(*each) for each in zip(self.manifest.apps, self.images)]

    @property
    def has_queues(self) -> bool:
        """Tell whether the pod has POSIX message queues: root of a user namespace may not mount those of the host."""
        return self.facts.has_queues and (self.mapped is None or self.flags.ipc != "parent")


class AppInput(Value):
    """An app before the plan."""

    pod: PodInput
    runtime: RuntimeApp
    app: App
    image: ImageManifest
    volumes: tuple[VolumeMount, ...] = ()

    @property
    def name(self) -> str:
        """The name of the app."""
        return self.runtime.name

    @property
    def lookups(self) -> AppLookups:
        """The facts about the user of the app from its root."""
        return dict(self.pod.loaded.lookups).get(self.name, AppLookups())

    @property
    def is_privileged(self) -> bool:
        """Tell whether the app has all privileges; PlanError where the pod does not allow that."""
        if not is_set(self.runtime, Annotation.PRIVILEGED):
            return False
        allowed = self.pod.manifest.annotation(Annotation.ALLOW_PRIVILEGED)
        if allowed not in (None, "true", "false"):
            raise PlanError(f'{Annotation.ALLOW_PRIVILEGED}: expected true or false, got "{allowed}"')
        where = f'app "{self.name}": {Annotation.PRIVILEGED}'
        if allowed != "true":
            raise PlanError(f"{where}: its pod has no {Annotation.ALLOW_PRIVILEGED}")
        if self.pod.mapped is not None:
            raise PlanError(f"{where}: not with --private-users")
        return True

    @property
    def has_hotplug(self) -> bool:
        """Tell whether the devices of the app follow the host's, by the app's annotation, then by the pod's."""
        return plan_hotplug(self.runtime, self.pod.manifest)


def may_be_privileged(manifest: PodManifest) -> bool:
    """Tell whether an app of a pod asks for all privileges, and the pod allows that."""
    asks = any(runtime.annotation(Annotation.PRIVILEGED) == "true" for runtime in manifest.apps)
    return asks and manifest.annotation(Annotation.ALLOW_PRIVILEGED) == "true"
