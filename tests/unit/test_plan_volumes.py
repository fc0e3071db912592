"""minit.plan.root.volumes: which volume is mounted where in each app, and what is said about it."""

from __future__ import annotations

import pytest

from minit.base.errors import PlanError
from minit.base.value import replace
from minit.manifest.app import App, MountPoint
from minit.manifest.image import ImageManifest
from minit.manifest.pod import Mount, PodManifest, RuntimeApp, Volume
from minit.plan.inputs.hostfacts import HostFacts
from minit.plan.inputs.runflags import RunFlags
from minit.plan.loadedpod import Pod
from minit.plan.podplan import plan_pod
from minit.plan.root.volumes import VolumeMount, host_files, plan_volumes

FLAGS = RunFlags(uuid="6c1ab9d3-1c0b-4c0f-9c4e-0f7c2a0c7b11", networks=("none",))
FACTS = HostFacts(effective_uid=0, kernel_release="6.1.0", has_cgroups=True)
HOST = Volume(name="data", kind="host", source="/srv/data")
EMPTY = Volume(name="data", kind="empty", mode="0750", uid=3, gid=4)
POINT = MountPoint(name="data", path="/data")


def app_with(*points: MountPoint) -> App:
    """Return an app with mount points."""
    return App(exec=("/bin/app",), user="0", group="0", mount_points=points)


def plan_of(
    volumes: tuple[Volume, ...] = (),
    mounts: tuple[Mount, ...] = (),
    points: tuple[MountPoint, ...] = (),
    *,
    in_image: bool = False,
    docker: bool = False,
) -> tuple[tuple[VolumeMount, ...], tuple[str, ...]]:
    """Return the volumes of the only app of a pod and the warnings."""
    app = app_with(*points)
    annotations = (("appc.io/docker/repository", "library/web"),) if docker else ()
    image = ImageManifest(ac_version="0.8.11", name="example.com/web", app=app, annotations=annotations)
    runtime = RuntimeApp(name="web", app=None if in_image else app, mounts=mounts)
    manifest = PodManifest(ac_version="0.8.11", apps=(runtime,), volumes=volumes)
    plan = plan_pod(Pod(manifest=manifest, images=(("web", image),)), FLAGS, FACTS)
    return plan.apps[0].storage.volumes, plan.warnings


def refusal_of(*arguments: tuple[object, ...], **keywords: bool) -> str:
    """Return why a pod cannot be; the arguments are those of plan_of."""
    with pytest.raises(PlanError) as caught:
        plan_of(*arguments, **keywords)  # type: ignore[arg-type]
    return str(caught.value)


def test_a_pod_without_volumes() -> None:
    """Nothing is mounted and nothing is said."""
    assert plan_of() == ((), ())


def test_a_host_volume() -> None:
    """A mount has the source of its volume, is recursive unless told otherwise, and can be written."""
    mount = VolumeMount(
        volume="data", kind="host", source="/srv/data", target="/x", place="pod: apps[0].mounts[0]", recursive=True
    )
    assert plan_of((HOST,), (Mount(volume="data", path="/x"),)) == ((mount,), ())
    flat = replace(HOST, recursive=False)
    assert plan_of((flat,), (Mount(volume="data", path="/x"),))[0] == (replace(mount, recursive=False),)


def test_an_empty_volume() -> None:
    """A directory in the pod directory by the name of the volume, with its owner and mode."""
    mount = VolumeMount(
        volume="data",
        kind="empty",
        source="sharedVolumes/data",
        target="/x",
        place="pod: apps[0].mounts[0]",
        mode=0o750,
        uid=3,
        gid=4,
    )
    assert plan_of((EMPTY,), (Mount(volume="data", path="/x"),)) == ((mount,), ())


@pytest.mark.parametrize("by_mount", [True, False])
@pytest.mark.parametrize(
    ("of_volume", "of_point", "read_only"),
    [
        (None, False, False),
        (None, True, True),
        (True, False, True),
        (True, True, True),
        (False, True, False),
        (False, False, False),
    ],
)
def test_read_only(of_volume: bool | None, of_point: bool, read_only: bool, by_mount: bool) -> None:
    """The volume decides in either direction; if it says nothing, the mount point of its name does."""
    volume = replace(HOST, read_only=of_volume)
    mounts = (Mount(volume="data", path="/elsewhere"),) if by_mount else ()
    [planned], _ = plan_of((volume,), mounts, (replace(POINT, read_only=of_point),))
    assert (planned.read_only, planned.target) == (read_only, "/elsewhere" if by_mount else "/data")


def test_the_first_mount_point_of_a_name_decides_for_a_mount() -> None:
    """Of two mount points with one name the first is asked whether the mount is read-only."""
    points = (replace(POINT, read_only=True), replace(POINT, path="/other"))
    [planned], _ = plan_of((HOST,), (Mount(volume="data", path="/x"),), points)
    assert planned.read_only


def test_a_mount_with_a_volume_of_its_own() -> None:
    """It stands in for the pod's volume of that name, which then is not used."""
    own = replace(HOST, source="/own")
    [planned], warnings = plan_of((), (Mount(volume="data", path="/x", app_volume=own),))
    assert (planned.source, warnings) == ("/own", ())


def test_mount_points_get_the_volume_of_their_name() -> None:
    """Mounts come first, then the mount points that no mount has met, both in the manifest's order."""
    volumes = tuple(replace(HOST, name=name) for name in ("a", "b", "c"))
    points = tuple(MountPoint(name=name, path=f"/{name}") for name in ("c", "a"))
    planned, warnings = plan_of(volumes, (Mount(volume="b", path="/b"),), points)
    assert [(mount.volume, mount.target) for mount in planned] == [("b", "/b"), ("c", "/c"), ("a", "/a")]
    assert [mount.place for mount in planned][1:] == [f"pod: apps[0].app.mountPoints[{index}]" for index in (0, 1)]
    assert warnings == ()


@pytest.mark.parametrize(
    "mount", [Mount(volume="other", path="/data"), Mount(volume="data", path="/elsewhere")], ids=["path", "volume"]
)
def test_a_mount_point_is_met_by_its_path_or_its_volume(mount: Mount) -> None:
    """Nothing is mounted for it then, and no volume made."""
    volumes = (replace(HOST, name="other"), HOST)
    planned, _ = plan_of(volumes, (mount,), (POINT,))
    assert [(item.volume, item.target) for item in planned] == [(mount.volume, mount.path)]


def test_a_volume_name_is_not_taken_for_a_path() -> None:
    """A relative path of a mount that equals the name of a mount point does not meet it."""
    planned, _ = plan_of((replace(HOST, name="other"),), (Mount(volume="other", path="data"),), (POINT,))
    assert [item.target for item in planned] == ["data", "/data"]


@pytest.mark.parametrize("docker", [True, False])
def test_a_mount_point_without_a_volume(docker: bool) -> None:
    """An empty volume is made for it, with rkt's warning; that of a Docker image begins as a copy."""
    [planned], warnings = plan_of(points=(replace(POINT, read_only=True),), in_image=True, docker=docker)
    assert planned == VolumeMount(
        volume="web-data",
        kind="empty",
        source="sharedVolumes/web-data",
        target="/data",
        place="stage1/rootfs/opt/stage2/web/manifest: app.mountPoints[0]",
        read_only=True,
        by_image=True,
        implicit=True,
        copy_up=docker,
    )
    assert warnings == (
        'warning: no volume specified for mount point "data", implicitly creating an "empty" volume.'
        " This volume will be removed when the pod is garbage-collected.",
    )


def test_explicit_empty_volumes_are_never_copies() -> None:
    """Only a volume that nobody asked for has the content of a Docker image."""
    [planned], _ = plan_of((EMPTY,), (), (POINT,), docker=True)
    assert not planned.copy_up


def test_a_mount_without_a_volume() -> None:
    """rkt's words, and where it is."""
    assert refusal_of((HOST,), (Mount(volume="data", path="/a"), Mount(volume="nope", path="/b"))) == (
        'pod: apps[0].mounts[1].volume: could not find volume "nope"'
    )


def test_a_volume_without_a_mount() -> None:
    """Nothing happens to it, which is said."""
    planned, warnings = plan_of((replace(HOST, name="used"), HOST), (Mount(volume="used", path="/a"),))
    assert len(planned) == 1
    assert warnings == ('warning: pod: volumes[1]: volume "data" is mounted by no app',)


def test_a_volume_for_apps_to_come() -> None:
    """In a mutable pod nothing is said of it: what is added later may mount it."""
    annotations = (("coreos.com/rkt/stage1/mutable", "true"),)
    manifest = PodManifest(ac_version="0.8.11", volumes=(HOST,), annotations=annotations)
    assert plan_volumes(manifest, (), ()) == ([], [])


@pytest.mark.parametrize("target", ["/", "", "//", "/.", "/..", "..", "/a/..", "./a/../.."])
def test_the_root_is_no_target(target: str) -> None:
    """A path that is the root however it is written is refused where it stands."""
    expected = f'expected a path below "/", got "{target}"'
    point = replace(POINT, path=target)
    assert refusal_of((), (), (point,)) == f"pod: apps[0].app.mountPoints[0].path: {expected}"
    assert refusal_of((HOST,), (), (point,)) == f"pod: apps[0].app.mountPoints[0].path: {expected}"
    if target:
        assert refusal_of((HOST,), (Mount(volume="data", path=target),)) == f"pod: apps[0].mounts[0].path: {expected}"


def test_two_mounts_at_one_place() -> None:
    """Both are made, and that the later one hides the earlier is said."""
    volumes = (HOST, replace(HOST, name="other"))
    mounts = (Mount(volume="data", path="/a/b"), Mount(volume="other", path="a//c/../b/"))
    planned, warnings = plan_of(volumes, mounts)
    assert len(planned) == 2
    assert warnings == (
        'warning: pod: apps[0].mounts[1].path: "a//c/../b/" hides volume "data", which is mounted there too',
    )


def test_two_implicit_volumes_of_one_name() -> None:
    """That two apps share a directory because their names add up to the same is said."""
    apps = tuple(
        RuntimeApp(name=name, app=app_with(MountPoint(name=point, path="/x")))
        for name, point in (("a", "b-c"), ("a-b", "c"))
    )
    image = ImageManifest(ac_version="0.8.11", name="x", app=app_with())
    manifest = PodManifest(ac_version="0.8.11", apps=apps)
    plan = plan_pod(Pod(manifest=manifest, images=(("a", image), ("a-b", image))), FLAGS, FACTS)
    assert plan.warnings[-1] == (
        'warning: pod: apps[1].app.mountPoints[0] shares the directory of volume "a-b-c" with'
        " pod: apps[0].app.mountPoints[0]"
    )


@pytest.mark.parametrize(
    ("resolv", "hosts", "targets"),
    [
        ("default", "default", []),
        ("none", "stage0", []),
        ("host", "default", ["/etc/resolv.conf"]),
        ("stage0", "host", ["/etc/hosts"]),
        ("host", "host", ["/etc/resolv.conf", "/etc/hosts"]),
    ],
)
def test_files_of_the_host(resolv: str, hosts: str, targets: list[str]) -> None:
    """In the modes of the host its own files are read-only mounts at the same place."""
    mounts = host_files(replace(FLAGS, resolv_mode=resolv, hosts_mode=hosts))
    assert [mount.target for mount in mounts] == targets
    assert all(mount.source == mount.target and mount.read_only and not mount.recursive for mount in mounts)


def test_files_of_the_host_come_after_volumes() -> None:
    """They hide a volume at the same place, as the user's flags go before the pod's manifest."""
    image = ImageManifest(ac_version="0.8.11", name="x", app=app_with())
    runtime = RuntimeApp(name="web", mounts=(Mount(volume="data", path="/etc/hosts"),))
    manifest = PodManifest(ac_version="0.8.11", apps=(runtime,), volumes=(HOST,))
    plan = plan_pod(Pod(manifest=manifest, images=(("web", image),)), replace(FLAGS, hosts_mode="host"), FACTS)
    assert [mount.place for mount in plan.apps[0].storage.volumes] == [
        "pod: apps[0].mounts[0]",
        "--dns-conf-mode=hosts=host",
    ]
