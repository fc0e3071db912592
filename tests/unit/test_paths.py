"""minit.podfiles.paths: the names that rkt, its users and minit agree on."""

from __future__ import annotations

from minit.podfiles import paths


def test_names_that_stage0_looks_for() -> None:
    """The files of an app lie where rkt's stage0 looks, relative to the stage1 root."""
    assert paths.status_file("web") == "/rkt/status/web"
    assert paths.created_marker("web") == "/rkt/status/web-created"
    assert paths.started_marker("web") == "/rkt/status/web-started"
    assert paths.env_file("web") == "/rkt/env/web"
    assert paths.app_rootfs("web") == "opt/stage2/web/rootfs"
    assert paths.app_manifest("web") == "stage1/rootfs/opt/stage2/web/manifest"
    assert (paths.STAGE1_READY, paths.READY_TARGET) == ("/rkt/supervisor-status", "ready")


def test_names_of_our_own_lie_below_rkt_minit() -> None:
    """Paths that rkt does not know of are kept apart."""
    assert paths.state_file("web") == "/rkt/minit/state/web.json"
    assert paths.log_file("web") == "/rkt/minit/log/web.log"
    assert paths.POD_CONTROL == paths.POD_STAGE1_ROOTFS + paths.STAGE1_CONTROL


def test_the_cgroup_name_is_escaped_as_systemd_does() -> None:
    """Dashes are path separators in unit names, so those of the UUID are escaped."""
    name = paths.pod_cgroup_name("6c1ab9d3-1c0b-4c0f-9c4e-0f7c2a0c7b11")
    assert name == r"machine-rkt\x2d6c1ab9d3\x2d1c0b\x2d4c0f\x2d9c4e\x2d0f7c2a0c7b11.scope"
