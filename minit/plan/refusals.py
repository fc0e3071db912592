"""Refusals of pods: unbuilt features, and names that would clash."""

from __future__ import annotations

from minit.base.errors import PlanError
from minit.manifest.annotations import Annotation, Place, find_fault
from minit.manifest.app import APPARMOR_PROFILE, App
from minit.manifest.image import ImageManifest
from minit.manifest.pod import PodManifest, RuntimeApp
from minit.plan.inputs.runflags import RunFlags
from minit.podfiles.paths import ANNOTATION_KUBERNETES_DIRECTORY, ANNOTATION_LOG_MODE, created_marker, started_marker

_ANNOTATION_EXPERIMENT = "coreos.com/rkt/experiment/"
_EXPERIMENTS = (ANNOTATION_KUBERNETES_DIRECTORY, ANNOTATION_LOG_MODE)


def refuse_unbuilt(manifest: PodManifest, flags: RunFlags) -> None:
    """Raise PlanError for an unbuilt feature."""
    if flags.ipc not in ("", "auto", "private", "parent"):
        raise PlanError(f"unknown value for --ipc parameter: {flags.ipc}")
    if not manifest.apps and not flags.mutable:
        raise PlanError("the pod has no apps")
    if any(isolator.name == APPARMOR_PROFILE for isolator in manifest.isolators):
        raise PlanError("pod isolator os/linux/apparmor-profile is not supported yet")
    for name, value in manifest.annotations:
        _check_keep_logs(name, value, "")
        if name.startswith(_ANNOTATION_EXPERIMENT) and name not in _EXPERIMENTS:
            raise PlanError(f"annotation {name} is not supported yet")
        if fault := find_fault(name, Place.POD):
            raise PlanError(fault)


def refuse_unknown_annotations(runtime: RuntimeApp, image: ImageManifest) -> None:
    """Raise PlanError for an unknown annotation of an image with a name of minit's."""
    for name, _ in image.annotations:
        if fault := find_fault(name, Place.IMAGE):
            raise PlanError(f'app "{runtime.name}": image {image.name}: {fault}')


def refuse_shared_files(manifest: PodManifest, about: str | None = None) -> None:
    """Raise PlanError if files of two apps would have the same name; with `about` only pairs with the app count."""
    # The markers of app `x` lie beside the status files: `x-created` would look like the end of an app of that name.
    names = {app.name for app in manifest.apps}
    for name in names:
        for marker in (created_marker(name), started_marker(name)):
            other = marker.rpartition("/")[2]
            if other in names and about in (None, name, other):
                raise PlanError(f'app "{other}" cannot be in a pod with app "{name}": rename one of them')


def refuse_unbuilt_of_app(runtime: RuntimeApp, app: App) -> None:
    """Raise PlanError for an unbuilt feature."""
    prefix = f'app "{runtime.name}": '
    for isolator in app.isolators:
        if isolator.name == APPARMOR_PROFILE:
            raise PlanError(f"{prefix}isolator {isolator.name} is not supported yet")
    for annotation, value in runtime.annotations:
        if fault := find_fault(annotation, Place.APP):
            raise PlanError(f"{prefix}{fault}")
        _check_keep_logs(annotation, value, prefix)


def _check_keep_logs(annotation: str, value: str, where: str) -> None:
    """Raise PlanError for a bad value of minit/keep-logs, which the removal of the app reads."""
    if annotation == Annotation.KEEP_LOGS and value not in ("true", "false"):
        raise PlanError(f'{where}{annotation}: expected true or false, got "{value}"')
