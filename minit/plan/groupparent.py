"""The control group around the groups of a pod's apps, if another group than that of the pod's launcher."""

from __future__ import annotations

import posixpath

from minit.base.errors import PlanError
from minit.manifest.annotations import Annotation
from minit.manifest.pod import PodManifest


def plan_group_parent(manifest: PodManifest) -> str | None:
    """Return the path of the group in each hierarchy, None for the launcher's; PlanError unless it is a plain path."""
    parent = manifest.annotation(Annotation.CGROUP_PARENT)
    if parent is None:
        return None
    if not is_group_path(parent):
        expected = "an absolute path without links, as in /kubepods/pod1"
        raise PlanError(f'annotation {Annotation.CGROUP_PARENT}: expected {expected}, got "{parent}"')
    return parent


def is_group_path(text: str) -> bool:
    """Tell whether a text is the plain path of a group, as can be read back from a file."""
    # Two slashes at the start would stay two.
    is_plain = text.startswith("/") and posixpath.normpath(f"/./{text}") == text and text != "/"
    return is_plain and text.isprintable() and all(name == name.strip() for name in text.split("/"))
