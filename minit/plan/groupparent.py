"""The control group that the groups of a pod's apps are made in, if it is not that of the pod's launcher."""

from __future__ import annotations

import posixpath

from minit.errors import PlanError
from minit.manifest.pod import PodManifest
from minit.paths import ANNOTATION_CGROUP_PARENT


def plan_group_parent(manifest: PodManifest) -> str | None:
    """Return the path of the group in each hierarchy, None for the launcher's; PlanError unless it is a plain path."""
    parent = manifest.annotation(ANNOTATION_CGROUP_PARENT)
    if parent is None:
        return None
    # Two slashes at the start would stay two.
    if not parent.startswith("/") or posixpath.normpath(f"/./{parent}") != parent or parent == "/" or "\0" in parent:
        expected = "an absolute path without links, as in /kubepods/pod1"
        raise PlanError(f'annotation {ANNOTATION_CGROUP_PARENT}: expected {expected}, got "{parent}"')
    return parent
