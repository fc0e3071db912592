"""Annotations that are true or false."""

from __future__ import annotations

from minit.base.errors import PlanError
from minit.manifest.pod import PodManifest, RuntimeApp


def find_switch(runtime: RuntimeApp, annotation: str, pod: PodManifest | None = None) -> bool | None:
    """Return the value of an annotation of an app, or of its pod, None without; PlanError if it is no true or false."""
    value = runtime.annotation(annotation)
    if value is None and pod is not None:
        value = pod.annotation(annotation)
    if value not in (None, "true", "false"):
        raise PlanError(f'app "{runtime.name}": {annotation}: expected true or false, got "{value}"')
    return None if value is None else value == "true"


def is_set(runtime: RuntimeApp, annotation: str, pod: PodManifest | None = None) -> bool:
    """Return whether an annotation of an app, or of its pod, is true; PlanError as above."""
    return find_switch(runtime, annotation, pod) is True
