"""The directory that all is in which an app has written outside of volumes."""

from __future__ import annotations

from pathlib import Path

from minit.podfiles import paths
from minit.stage0.pods.poddirectory import open_pod
from minit.stage0.pods.podstatus import read_app_tree_id


def writable_layer(data: Path, uuid: str, app: str) -> Path:
    """Return the upper layer of an app's overlay, the whole root of one that has none; PodError if there is no pod."""
    with open_pod(data, uuid) as pod:
        if not pod.has_file(paths.POD_OVERLAY_PREPARED):
            return pod.path / paths.POD_STAGE1_ROOTFS / paths.app_rootfs(app)
        return pod.path / "overlay" / read_app_tree_id(pod, app) / "upper" / app
