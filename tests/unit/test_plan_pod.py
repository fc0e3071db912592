"""minit.plan.podplan: namespaces, host name, grace, and what a pod or a machine cannot have."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minit.base.errors import ManifestError, PlanError
from minit.base.idrange import IdRange
from minit.base.processors import parse_kernel_release
from minit.base.value import replace
from minit.manifest.app import MAX_ID, App, EventHandler, Isolator, MountPoint, Port
from minit.manifest.capabilities import DEFAULT, capability_mask, capability_names
from minit.manifest.capabilities import NAMES as CAPABILITIES
from minit.manifest.image import ImageManifest
from minit.manifest.limits import CpuQuota, Limits
from minit.manifest.networkconfig import NetworkConfig
from minit.manifest.pod import ExposedPort, Mount, PodManifest, RuntimeApp, Volume
from minit.plan.connection import connect
from minit.plan.inputs.hostfacts import HostFacts
from minit.plan.inputs.runflags import RunFlags
from minit.plan.loadedpod import Pod, has_isolators
from minit.plan.networks.networkplan import Connection
from minit.plan.podplan import PodPlan, plan_machine, plan_pod
from minit.plan.rights.protection import Protection
from minit.plan.rights.users import AppLookups, Lookup
from minit.plan.root.mountoperations import SYSFS_AND_CGROUPS, MadeFilesystem, MakeDirectory, MakeNode, MountFilesystem

UUID = "6c1ab9d3-1c0b-4c0f-9c4e-0f7c2a0c7b11"
FLAGS = RunFlags(uuid=UUID, networks=("none",))
FACTS = HostFacts(
    effective_uid=0, kernel_release="6.1.0-18-amd64", has_cgroups=True, capabilities=capability_mask(*CAPABILITIES)
)
ABLE = replace(FACTS, controllers=frozenset({"memory", "cpu", "pids"}))
APP = App(exec=("/bin/app",), user="0", group="0")
IMAGE = ImageManifest(ac_version="0.8.11", name="example.com/web", app=APP)
MANIFEST = PodManifest(ac_version="0.8.11", apps=(RuntimeApp(name="web"),))
NETWORKS = tuple(
    NetworkConfig(name=name, file_name=f"{name}.conf", directory="/etc/rkt/net.d", text=b"{}")
    for name in ("default", "other")
)


def plan_of(
    manifest: PodManifest = MANIFEST, image: ImageManifest = IMAGE, flags: RunFlags = FLAGS, facts: HostFacts = FACTS
) -> PodPlan:
    """Return the plan of a pod whose apps all have the same image, where there are two networks to join."""
    images = tuple((app.name, image) for app in manifest.apps)
    return plan_pod(Pod(manifest=manifest, images=images, networks=NETWORKS), flags, facts)


def refusal_of(*manifest: PodManifest, **changes: object) -> str:
    """Return why a pod cannot be; the arguments are those of plan_of."""
    with pytest.raises(PlanError) as caught:
        plan_of(*manifest, **changes)  # type: ignore[arg-type]
    return str(caught.value)


def annotated(name: str, value: str) -> PodManifest:
    """Return the least pod with an annotation."""
    return replace(MANIFEST, annotations=((name, value),))


def test_the_least_pod() -> None:
    """A pod with one app gets every namespace, a host name after its UUID, ten seconds of grace and no warnings."""
    plan = plan_of()
    assert (plan.uuid, plan.hostname) == (UUID, f"rkt-{UUID}")
    assert plan.namespaces == ("mnt", "pid", "uts", "ipc", "net")
    assert plan.has_loopback_only
    assert [app.name for app in plan.apps] == ["web"]
    assert (plan.bounding, plan.warnings, plan.debug) == (DEFAULT, (), False)
    assert [(app.life.stop_signal, app.life.stop_grace_seconds) for app in plan.apps] == [(15, 10.0)]


@pytest.mark.parametrize(
    ("networks", "own"),
    [((), False), (("host",), False), (("none", "host"), False), (("foo", "host"), False), (("none",), True)],
)
def test_the_network(networks: tuple[str, ...], own: bool) -> None:
    """No list means the host's network, `host` beats everything beside it, `none` is a namespace with lo alone."""
    assert plan_of(flags=replace(FLAGS, networks=networks)).has_loopback_only is own


@pytest.mark.parametrize("networks", [("default",), ("other", "default"), ("all",)])
def test_a_pod_with_networks(networks: tuple[str, ...]) -> None:
    """The namespace is made for the networks, before PID 1, so that it is none of those that PID 1 is made with."""
    plan = plan_of(flags=replace(FLAGS, networks=networks))
    assert plan.network is not None
    assert "net" not in plan.namespaces
    assert not plan.has_loopback_only


def test_networks_that_do_not_exist() -> None:
    """They are named."""
    text = refusal_of(flags=replace(FLAGS, networks=("lan", "default")))
    assert text == "failed to setup network: networks not found: lan"


@pytest.mark.parametrize(("ipc", "own"), [("", True), ("auto", True), ("private", True), ("parent", False)])
def test_ipc(ipc: str, own: bool) -> None:
    """IPC is private unless the parent's is asked for."""
    assert ("ipc" in plan_of(flags=replace(FLAGS, ipc=ipc)).namespaces) is own


PARENT = "minit/cgroup-parent"


def test_the_parent_of_control_groups() -> None:
    """A plain path from the top of the hierarchies; a machine has none."""
    assert plan_of().group_parent is None
    assert plan_of(annotated(PARENT, "/kubepods/a-b.slice")).group_parent == "/kubepods/a-b.slice"
    for bad in ("", "/", "a-b.slice", "/a/", "//a", "/a/../b", "/a\0b", "/a ", "/ a/b", "/a\nb"):
        text = f'annotation {PARENT}: expected an absolute path without links, as in /kubepods/pod1, got "{bad}"'
        assert refusal_of(annotated(PARENT, bad)) == text
    with pytest.raises(PlanError, match="a machine has no group around it"):
        plan_machine(Pod(manifest=annotated(PARENT, "/a"), images=(("web", IMAGE),), networks=()), FLAGS, FACTS)


OWN_PIDS = "minit/pid-namespace"


@pytest.mark.parametrize(
    ("of_pod", "of_app", "own"), [("", "", False), ("app", "", True), ("", "app", True), ("app", "pod", False)]
)
def test_a_pid_namespace_of_an_app(of_pod: str, of_app: str, own: bool) -> None:
    """The app's annotation counts more than the pod's; with one of its own it has another /proc than the pod."""
    app = RuntimeApp(name="web", annotations=((OWN_PIDS, of_app),) if of_app else ())
    pod = replace(MANIFEST, apps=(app,), annotations=((OWN_PIDS, of_pod),) if of_pod else ())
    [spec] = plan_of(pod).apps
    [proc] = [each for each in spec.storage.mounts if each.target == "/proc" and not isinstance(each, MakeDirectory)]
    assert (spec.process.own_pids, isinstance(proc, MountFilesystem)) == (own, own)
    assert len(spec.storage.mounts) == len(plan_of().apps[0].storage.mounts)


def test_the_processes_of_the_host() -> None:
    """The pod has no PID namespace then; no app can have another one, or ask for it alone, and no user namespace."""
    host = annotated(OWN_PIDS, "host")
    plan = plan_of(host)
    assert ("pid" in plan.namespaces, plan.host_pids, plan.apps[0].process.own_pids) == (False, True, False)
    assert not plan_of().host_pids
    assert "not with --private-users" in refusal_of(host, flags=PRIVATE)
    with pytest.raises(PlanError, match="the processes of a machine are its own"):
        plan_machine(Pod(manifest=host, images=(("web", IMAGE),), networks=()), FLAGS, FACTS)


def test_the_pid_namespace_of_another_app() -> None:
    """It is for an app of a mutable pod, and has another /proc."""

    def of_app(value: str) -> PodManifest:
        return replace(MANIFEST, apps=(RuntimeApp(name="web", annotations=((OWN_PIDS, value),)),))

    [spec] = plan_of(of_app("app:db"), flags=replace(FLAGS, mutable=True)).apps
    [proc] = [each for each in spec.storage.mounts if each.target == "/proc" and not isinstance(each, MakeDirectory)]
    assert (spec.process.own_pids, spec.process.pids_of, isinstance(proc, MountFilesystem)) == (True, "db", True)
    assert "only in a mutable pod" in refusal_of(of_app("app:db"))
    assert "that is the app itself" in refusal_of(of_app("app:web"))
    for bad in (of_app("app:"), of_app("app:D/b"), annotated(OWN_PIDS, "app:db")):
        assert "expected pod, app or, of an app, app:NAME" in refusal_of(bad)


def test_what_an_app_with_its_own_pids_cannot_have() -> None:
    """Each is refused by its name."""
    assert (
        refusal_of(annotated(OWN_PIDS, "own"))
        == f'app "web": {OWN_PIDS}: expected pod, app or, of an app, app:NAME, got "own"'
    )
    hotplug = replace(MANIFEST, annotations=((OWN_PIDS, "app"), ("minit/hotplug", "true")))
    assert "an app with minit/hotplug has that of its pod" in refusal_of(hotplug)
    handlers = replace(APP, event_handlers=(EventHandler(name="post-stop", exec=("/x",)),))
    image = replace(IMAGE, app=handlers)
    assert "an app with a post-stop handler, which comes after its end, has that of its pod" in refusal_of(
        annotated(OWN_PIDS, "app"), image=image
    )
    volume = Volume(name="v", kind="host", source="/srv")
    mount = Mount(volume="v", path="/proc/x")
    pod = replace(annotated(OWN_PIDS, "app"), apps=(RuntimeApp(name="web", mounts=(mount,)),), volumes=(volume,))
    assert "an app with a volume at /proc/x has that of its pod" in refusal_of(pod)


@pytest.mark.parametrize("networks", [(), ("host",), ("none", "host")])
def test_the_metadata_service(networks: tuple[str, ...]) -> None:
    """With the host's network it is at the host's own address; the token is the path."""
    [spec] = plan_of(flags=replace(FLAGS, networks=networks, mds_token="0a")).apps
    assert dict(spec.process.environment)["AC_METADATA_URL"] == "http://127.0.0.1:18112/0a"
    [spec] = plan_of(flags=replace(FLAGS, networks=networks)).apps
    assert "AC_METADATA_URL" not in dict(spec.process.environment)


def test_without_a_network_there_is_no_metadata_service() -> None:
    """A pod that could not reach it is refused, as by rkt."""
    assert refusal_of(flags=replace(FLAGS, mds_token="0a")) == (
        "failed to setup network: --mds-token needs a network, --net=none gives none"
    )


def test_without_a_network_no_port_leads_to_the_pod() -> None:
    """A pod whose ports could not be forwarded is refused; the host's network has nothing to forward."""
    manifest = replace(MANIFEST, ports=(ExposedPort(name="http", host_port=80),))
    assert refusal_of(manifest) == "failed to setup network: forwarding ports needs a network, --net=none gives none"
    assert plan_of(manifest, flags=replace(FLAGS, networks=())).network is None


@pytest.mark.parametrize(("networks", "is_writable"), [(("none",), True), ((), False)])
def test_protected_paths(networks: tuple[str, ...], is_writable: bool) -> None:
    """They are the same for all apps; the parameters of a network of the pod's own are not among them."""
    [spec] = plan_of(flags=replace(FLAGS, networks=networks)).apps
    assert (
        ("/proc/sys/net/ipv4" in spec.storage.protection.writable)
        == bool(spec.storage.protection.writable)
        == is_writable
    )
    assert "/proc/kcore" in spec.storage.protection.masked
    assert "/proc/sys" in spec.storage.protection.read_only


def test_no_protected_paths() -> None:
    """With --disable-paths there are none, and /sys is as writable as it is."""
    plan = plan_of(flags=replace(FLAGS, disable_paths=True))
    assert plan.apps[0].storage.protection == Protection()
    assert not [mount for mount in plan.mounts if isinstance(mount, MountFilesystem) and mount.read_only]


def test_what_networks_offer_to_apps() -> None:
    """Each app gets name servers in a file of its own, and is told where the metadata service is."""
    plan = plan_of(flags=replace(FLAGS, networks=("default",)))
    connection = Connection(namespace="/n", host_address="172.16.28.1", resolv_conf="nameserver 1.2.3.4\n")
    [spec] = connect(plan.apps, connection, mds_token="0a")
    assert dict(spec.process.environment)["AC_METADATA_URL"] == "http://172.16.28.1:18112/0a"
    [file] = [file for file in spec.storage.files if file.target == "/etc/resolv.conf"]
    assert file.text == b"nameserver 1.2.3.4\n"
    assert connect(plan.apps, Connection(namespace="/n"), mds_token="") == plan.apps
    with pytest.raises(PlanError, match="--mds-token needs"):
        connect(plan.apps, Connection(namespace="/n"), mds_token="0a")


def test_users_of_each_app() -> None:
    """Each app's ids come from what was looked up for it; an app without lookups has numbers."""
    apps = tuple(
        RuntimeApp(name=name, app=replace(APP, user=user, group="7"))
        for name, user in (("a", "me"), ("b", "me"), ("c", "3"))
    )
    lookups = tuple(
        (name, AppLookups(user=Lookup(database=b"me:x:%d:0:::\n" % number))) for name, number in (("a", 1), ("b", 2))
    )
    images = tuple((app.name, IMAGE) for app in apps)
    pod = Pod(manifest=replace(MANIFEST, apps=apps), images=images, lookups=lookups)
    ids = [(app.name, app.confinement.uid, app.confinement.gid) for app in plan_pod(pod, FLAGS, FACTS).apps]
    assert ids == [("a", 1, 7), ("b", 2, 7), ("c", 3, 7)]


@pytest.mark.parametrize(
    ("modes", "uid", "is_read"),
    [
        ({}, None, False),
        ({"web": "stdin"}, 7, True),
        ({"web": "stdout"}, 7, False),
        ({"db": "stderr"}, 8, False),
        ({"web": "stdout", "db": "stdin"}, 7, True),
    ],
)
def test_the_console_belongs_to_the_first_app_with_one(modes: dict[str, str], uid: int | None, is_read: bool) -> None:
    """It is read if any app has it as its stdin; without such an app a pod has no console."""
    apps = tuple(
        RuntimeApp(
            name=name,
            app=replace(APP, user=user),
            annotations=((f"coreos.com/rkt/stage2/{modes[name]}", "interactive"),) if name in modes else (),
        )
        for name, user in (("web", "7"), ("db", "8"))
    )
    plan = plan_of(replace(MANIFEST, apps=apps))
    assert (plan.console_uid, plan.reads_console) == (uid, is_read)


def test_an_interactive_pod_has_the_callers_term() -> None:
    """The fact reaches every app."""
    plan = plan_of(flags=replace(FLAGS, interactive=True), facts=replace(FACTS, terminal_type="xterm"))
    assert [dict(app.process.environment)["TERM"] for app in plan.apps] == ["xterm"]


def test_an_unknown_ipc_mode() -> None:
    """rkt's own words for it."""
    assert refusal_of(flags=replace(FLAGS, ipc="shared")) == "unknown value for --ipc parameter: shared"


def test_a_mutable_pod() -> None:
    """Its apps may be started again, and PID 1 gives up no capability, which one that is added later might retain."""
    plan = plan_of(flags=replace(FLAGS, mutable=True))
    assert plan.mutable and plan.bounding is None
    assert all(app.life.starts_again and app.confinement.bounding == DEFAULT for app in plan.apps)
    assert plan_of().bounding == DEFAULT


PRIVATE = replace(FLAGS, private_users="100000:65536")


def test_private_users() -> None:
    """The pod has one more namespace and the ids, its apps see the control groups; --debug says so."""
    plan = plan_of(flags=PRIVATE)
    assert plan.namespaces == ("mnt", "pid", "uts", "ipc", "net", "user")
    assert plan.private_users == IdRange(shift=100000, count=65536)
    assert plan.apps[0].storage.sysfs == SYSFS_AND_CGROUPS
    assert "pod: private users 100000:65536" in plan.describe()
    assert plan_of().private_users is None


@pytest.mark.parametrize("networks", [("none",), ("host",), ("default",)])
def test_what_the_launcher_makes_for_private_users(networks: tuple[str, ...]) -> None:
    """Every /dev, and /sys where the network is not made together with the user namespace; nobody makes a device."""
    plan = plan_of(flags=replace(PRIVATE, networks=networks))
    made = [operation.target for operation in plan.mounts if isinstance(operation, MadeFilesystem)]
    assert made == (["/dev"] if networks == ("none",) else ["/sys", "/dev"])
    of_app = plan.apps[0].storage.mounts
    assert [operation.target for operation in of_app if isinstance(operation, MadeFilesystem)] == ["/dev"]
    assert not any(isinstance(operation, MakeNode) for operation in (*plan.mounts, *of_app))


def test_private_users_with_overlay() -> None:
    """A stage0 that does not map the owners of the layers has to make copies."""
    pod = Pod(manifest=MANIFEST, images=(("web", IMAGE),), has_unmapped_overlay=True)
    with pytest.raises(PlanError, match="cannot use both overlay and user namespace"):
        plan_pod(pod, PRIVATE, FACTS)


def test_ids_that_private_users_do_not_have() -> None:
    """Of the app, of its supplementary groups and of its volumes: one line says whose."""
    for app, what in (
        (replace(APP, user="65536"), 'app "web": user "65536"'),
        (replace(APP, supplementary_gids=(65536,)), 'app "web": supplementary group'),
    ):
        line = f"{what}: 65536 is unmapped: --private-users maps 0 to 65535"
        assert refusal_of(image=replace(IMAGE, app=app), flags=PRIVATE) == line
    volume = Volume(name="v", kind="empty", mode="0755", uid=0, gid=65536)
    apps = (RuntimeApp(name="web", mounts=(Mount(path="/v", volume="v"),)),)
    assert 'owner of volume "v": 65536' in refusal_of(replace(MANIFEST, apps=apps, volumes=(volume,)), flags=PRIVATE)


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (replace(FACTS, effective_uid=1000), "a pod can only be run as root"),
        (replace(FACTS, kernel_release="5.11.22"), "kernel 5.11.22 is too old: Linux 5.12 or newer is needed"),
        (replace(FACTS, kernel_release="4.19"), "kernel 4.19 is too old: Linux 5.12 or newer is needed"),
        (replace(FACTS, has_cgroups=False), "no cgroup hierarchy is mounted: mount one below /sys/fs/cgroup"),
    ],
)
def test_machines_that_will_not_do(facts: HostFacts, text: str) -> None:
    """A feature that the machine lacks is one line."""
    assert refusal_of(facts=facts) == text


@pytest.mark.parametrize(
    ("release", "version"),
    [
        ("6.1.0-18-amd64", (6, 1)),
        ("5.12", (5, 12)),
        ("5.12-rc1+", (5, 12)),
        ("5.100.0", (5, 100)),
        ("6.18.44-fc-v657", (6, 18)),
        ("10.0.0", (10, 0)),
    ],
)
def test_kernel_releases(release: str, version: tuple[int, int]) -> None:
    """Releases are numbers, so that 5.100 is newer than 5.12, and any of these will do."""
    assert parse_kernel_release(release) == version
    plan_of(facts=replace(FACTS, kernel_release=release))


@pytest.mark.parametrize("hostname", ["web", "a" * 64, "my_host.Example-1", "_", "1.2"])
def test_hostnames(hostname: str) -> None:
    """A name of hostname(7), of up to 64 bytes, is taken as it is, and so are underscores."""
    assert plan_of(flags=replace(FLAGS, hostname=hostname)).hostname == hostname


@pytest.mark.parametrize("hostname", ["a" * 65, "ü" * 33, "\udcff" * 65])
def test_hostnames_that_are_too_long(hostname: str) -> None:
    """sethostname(2) counts bytes, and so does the plan."""
    assert refusal_of(flags=replace(FLAGS, hostname=hostname)) == f'hostname "{hostname}" is longer than 64 bytes'


@pytest.mark.parametrize(
    "hostname", ["a\nb", "a/b", "../a", "-a", "a-", "a.-b", "a..b", ".", "a.", "a b", "ü", "\udcff"]
)
def test_what_is_no_hostname(hostname: str) -> None:
    """A name that would make a line of /etc/hosts, or a path, is refused."""
    assert refusal_of(flags=replace(FLAGS, hostname=hostname)).startswith(f'hostname "{hostname}" is no host name: ')


@pytest.mark.parametrize(("text", "seconds"), [("0", 0.0), ("0s", 0.0), ("3s", 3.0), ("1m30s", 90.0), ("250ms", 0.25)])
def test_grace(text: str, seconds: float) -> None:
    """The annotation sets how long a stop may take."""
    assert [app.life.stop_grace_seconds for app in plan_of(annotated("minit/stop-grace", text)).apps] == [seconds]


def test_the_stop_signal_of_an_image() -> None:
    """An image can say which signal stops its apps; a name of ours that is no setting of an image is refused."""
    image = replace(IMAGE, annotations=(("minit/stop-signal", "SIGQUIT"), ("example.com/x", "y")))
    assert [app.life.stop_signal for app in plan_of(image=image).apps] == [3]
    faults = {
        "minit/stop-sig": 'unknown annotation "minit/stop-sig", did you mean "minit/stop-signal"?',
        "minit/stop-grace": 'annotation "minit/stop-grace" is one of pods or apps, not of images',
        "minit/what": 'unknown annotation "minit/what"',
    }
    for name, fault in faults.items():
        text = refusal_of(image=replace(IMAGE, annotations=((name, "1s"),)))
        assert text == f'app "web": image example.com/web: {fault}'


@pytest.mark.parametrize("text", ["", "5", "soon", "-1s", "9" * 400 + "h"])
def test_bad_grace(text: str) -> None:
    """A value that is no duration is quoted, with an example."""
    assert refusal_of(manifest=annotated("minit/stop-grace", text)) == (
        f'annotation minit/stop-grace: expected a duration such as "10s", got "{text}"'
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"apps": ()}, "the pod has no apps"),
        (
            {"isolators": (Isolator(name="os/linux/apparmor-profile", value={"profile": "x"}),)},
            "pod isolator os/linux/apparmor-profile is not supported yet",
        ),
        (
            {"annotations": (("coreos.com/rkt/experiment/other", "x"),)},
            "annotation coreos.com/rkt/experiment/other is not supported yet",
        ),
        (
            {"annotations": (("minit/stop-grase", "1s"),)},
            'unknown annotation "minit/stop-grase", did you mean "minit/stop-grace"?',
        ),
    ],
)
def test_pods_that_are_refused(fields: dict[str, Any], text: str) -> None:
    """A field whose effect is not built is refused in one line."""
    assert refusal_of(manifest=replace(MANIFEST, **fields)) == text


def test_foreign_annotations_are_ignored() -> None:
    """An annotation that is not ours and not rkt's changes nothing."""
    assert plan_of(annotated("example.com/x", "y")) == plan_of()


def test_the_pods_app_section_replaces_the_images() -> None:
    """Nothing of the image's section shines through."""
    own = App(exec=("/bin/own",), user="7", group="8")
    image = replace(IMAGE, app=replace(APP, environment=(("A", "1"),), working_directory="/srv"))
    [spec] = plan_of(replace(MANIFEST, apps=(RuntimeApp(name="web", app=own),)), image).apps
    assert (spec.process.candidates, spec.confinement.uid, spec.confinement.gid, spec.process.working_directory) == (
        ("/bin/own",),
        7,
        8,
        "/",
    )
    assert "A" not in dict(spec.process.environment)


def test_an_app_without_any_section_is_refused() -> None:
    """Neither pod nor image saying what to run is an error that names the image."""
    assert refusal_of(image=replace(IMAGE, app=None)) == (
        'app "web" has no executable: neither the pod nor image example.com/web has an app'
    )


@pytest.mark.parametrize("marker", ["created", "started"])
def test_names_whose_status_files_collide_are_refused(marker: str) -> None:
    """The marker of one app would be taken for the end of the other."""
    apps = (RuntimeApp(name=f"web-{marker}"), RuntimeApp(name="web"))
    assert refusal_of(manifest=replace(MANIFEST, apps=apps)) == (
        f'app "web-{marker}" cannot be in a pod with app "web": rename one of them'
    )
    assert plan_of(replace(MANIFEST, apps=apps[:1]))


@pytest.mark.parametrize(("value", "notifies"), [("true", True), ("1", True), ("false", False), ("", False)])
def test_an_image_may_tell_its_readiness(value: str, notifies: bool) -> None:
    """Its annotation decides, unless the app has the same one."""
    image = replace(IMAGE, annotations=(("appc.io/executor/supports-systemd-notify", value),))
    [spec] = plan_of(image=image).apps
    assert (spec.life.notifies, spec.life.tells_readiness) == (notifies, notifies)
    own = (("appc.io/executor/supports-systemd-notify", "false"),)
    [spec] = plan_of(replace(MANIFEST, apps=(replace(MANIFEST.apps[0], annotations=own),)), image=image).apps
    assert not spec.life.notifies


def test_warnings_of_all_apps_are_gathered() -> None:
    """Each app's warnings reach the plan, in the order of the apps."""
    apps = tuple(
        RuntimeApp(name=name, app=replace(APP, isolators=(Isolator(name=f"acme/{name}", value=None),)))
        for name in ("b", "a")
    )
    assert plan_of(replace(MANIFEST, apps=apps)).warnings == (
        "warning: ignoring unknown isolator acme/b (pod: apps[0].app.isolators[0])",
        "warning: ignoring unknown isolator acme/a (pod: apps[1].app.isolators[0])",
    )


# Isolators.


def isolated(*isolators: Isolator, pod: tuple[Isolator, ...] = (), **changes: Any) -> PodManifest:
    """Return a pod with one app with some isolators, and some of its own."""
    app = RuntimeApp(name="web", app=replace(APP, isolators=isolators), **changes)
    return replace(MANIFEST, apps=(app,), isolators=pod)


def retaining(*names: str) -> Isolator:
    """Return the isolator that retains some capabilities."""
    return Isolator(name="os/linux/capabilities-retain-set", value={"set": list(names)})


def limiting(name: str, limit: str) -> Isolator:
    """Return the isolator that limits a resource."""
    return Isolator(name=f"resource/{name}", value={"limit": limit})


@pytest.mark.parametrize("isolators", [(), (retaining("CAP_SYS_ADMIN"),)])
def test_a_disabled_capability_restriction(isolators: tuple[Isolator, ...]) -> None:
    """It leaves the bounding sets of the apps and of PID 1 alone, whatever the isolators say."""
    plan = plan_of(isolated(*isolators), flags=replace(FLAGS, disable_capabilities=True))
    assert (plan.bounding, [app.confinement.bounding for app in plan.apps]) == (None, [None])


def test_the_bounding_set_of_pid_1() -> None:
    """It is the default set and what any app retains, since what PID 1 gives up no app can have."""
    apps = tuple(
        RuntimeApp(name=name, app=replace(APP, isolators=isolators))
        for name, isolators in (
            ("a", (retaining("CAP_NET_ADMIN"),)),
            ("b", (retaining("CAP_SYSLOG", "CAP_KILL"),)),
            ("c", (Isolator(name="os/linux/capabilities-remove-set", value={"set": capability_names(DEFAULT)}),)),
            ("d", ()),
        )
    )
    plan = plan_of(replace(MANIFEST, apps=apps))
    own = [capability_mask("CAP_NET_ADMIN"), capability_mask("CAP_SYSLOG", "CAP_KILL"), 0, DEFAULT]
    assert [app.confinement.bounding for app in plan.apps] == own
    assert plan.bounding == DEFAULT | own[0] | own[1]


def test_the_pods_section_replaces_that_of_the_image() -> None:
    """Of an image whose app section the pod replaces, no isolator counts; otherwise its own do, by its own place."""
    image = replace(IMAGE, app=replace(APP, isolators=(limiting("memory", "1G"), limiting("net", "1"))))
    assert plan_of(isolated(), image, facts=ABLE).apps[0].resources.limits is None
    plan = plan_of(image=image, facts=ABLE)
    assert plan.apps[0].resources.limits == Limits(memory_bytes=10**9)
    place = "stage1/rootfs/opt/stage2/web/manifest: app.isolators[1]"
    assert plan.warnings == (f"warning: ignoring unknown isolator resource/net ({place})",)


def test_limits_of_the_pod_bound_those_of_its_apps() -> None:
    """None of an app's own is wider; an app without its own has none."""
    pod = (limiting("memory", "1G"), limiting("cpu", "1"))
    plan = plan_of(isolated(limiting("memory", "2G"), limiting("cpu", "500m"), pod=pod), facts=ABLE)
    assert plan.limits == Limits(memory_bytes=10**9, cpu_quota=CpuQuota(quota=100_000))
    assert plan.apps[0].resources.limits == Limits(memory_bytes=10**9, cpu_quota=CpuQuota(quota=50_000))
    assert plan.controllers == {"memory", "cpu"}
    assert plan_of(isolated(pod=pod), facts=ABLE).apps[0].resources.limits is None
    assert "pod: limits memory 1000000000 bytes, 100% of a processor" in plan.describe()
    assert "app web: limits memory 1000000000 bytes, 50% of a processor" in plan.describe()


def test_the_number_of_processes() -> None:
    """The annotation limits those of an app, that of the pod those of all apps."""
    limited = (("minit/pids-limit", "100"),)
    plan = plan_of(isolated(annotations=limited), facts=ABLE)
    assert (plan.limits, plan.apps[0].resources.limits) == (None, Limits(processes=100))
    plan = plan_of(replace(MANIFEST, annotations=limited), facts=ABLE)
    assert (plan.limits, plan.apps[0].resources.limits) == (Limits(processes=100), None)
    assert plan.controllers == {"pids"}


def test_controllers_of_apps_that_are_added_later() -> None:
    """The groups of a mutable pod have those of every limit, as far as the machine has them."""
    every = frozenset({"cpu", "cpuset", "hugetlb", "memory", "pids"})
    facts = replace(FACTS, controllers=every | {"perf_event"})
    assert plan_of(flags=replace(FLAGS, mutable=True), facts=facts).controllers == every
    assert plan_of(facts=facts).controllers == frozenset()


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "many", "4194305", "9" * 5000, "\u0663"])
def test_a_number_of_processes_that_is_none(text: str) -> None:
    """It is refused with the annotation's name and where it stands."""
    reason = f'annotation minit/pids-limit: expected a number of processes from 1 to 4194304, got "{text}"'
    assert refusal_of(annotated("minit/pids-limit", text)) == reason
    assert refusal_of(isolated(annotations=(("minit/pids-limit", text),))) == f'app "web": {reason}'


def test_without_controllers_there_are_no_limits() -> None:
    """Each limit that the machine cannot keep is named, in rkt's words."""
    plan = plan_of(isolated(limiting("memory", "1G"), annotations=(("minit/pids-limit", "1"),)))
    assert plan.apps[0].resources.limits is None and not plan.controllers
    assert plan.warnings == (
        "warning: resource/memory isolator set but support disabled in the kernel, skipping"
        " (pod: apps[0].app.isolators[0])",
        'warning: app "web": annotation minit/pids-limit set but support disabled in the kernel, skipping',
    )


def test_control_groups_in_the_apps_sysfs() -> None:
    """They are there if the unified hierarchy is the only one, as under rkt's stage1."""
    assert [
        app.storage.sysfs.recursive for app in (*plan_of().apps, *plan_of(facts=replace(FACTS, is_unified=True)).apps)
    ] == [False, True]


def test_what_is_asked_of_the_machine() -> None:
    """Controllers and capabilities are only looked at if anybody has isolators or the annotation."""
    images = (("web", IMAGE),)
    assert not has_isolators(Pod(manifest=MANIFEST, images=images))
    for manifest in (
        isolated(Isolator(name="a/b", value=None)),
        isolated(pod=(Isolator(name="a/b", value=None),)),
        annotated("minit/pids-limit", ""),
        isolated(annotations=(("minit/pids-limit", ""),)),
    ):
        assert has_isolators(Pod(manifest=manifest, images=images))


def test_describe() -> None:
    """The debug lines begin with the pod, go on with its mounts and end with each app's decisions."""
    plan = plan_of(flags=replace(FLAGS, hostname="h"))
    first, *rest = plan.describe()
    assert first == f"pod {UUID}: hostname h, namespaces mnt pid uts ipc net"
    assert "pod: mount sysfs on /sys (nosuid,nodev,noexec,read_only)" in rest
    assert "pod: mount devpts on /dev/pts (nosuid,noexec,newinstance,ptmxmode=0666,mode=0620,gid=5)" in rest
    assert rest[-len(plan.apps[0].describe()) :] == plan.apps[0].describe()


def test_planning_is_pure() -> None:
    """The same pod, flags and facts give an equal plan."""
    assert plan_of() == plan_of()
    assert hash(plan_of()) == hash(plan_of())


# Any valid manifests.

NAMES = st.sampled_from(["a", "web", "web-created", "a--b", "x-started", "x"])
TEXTS = st.text(max_size=6)
PATHS = TEXTS.map(lambda text: f"/{text}")
IDS = st.integers(0, MAX_ID)
ANNOTATIONS = st.dictionaries(
    st.sampled_from(
        [
            *("minit/stop-grace", "minit/x", "example.com/y", "coreos.com/rkt/experiment/logmode"),
            *(f"coreos.com/rkt/stage2/{stream}" for stream in ("stdin", "stdout", "stderr")),
            "appc.io/executor/supports-systemd-notify",
        ]
    ),
    st.sampled_from(["", "true", "null", "tty", "stream", "5s"]) | TEXTS,
    max_size=2,
).map(lambda pairs: tuple(pairs.items()))
ISOLATORS = st.lists(
    st.builds(
        Isolator,
        name=st.sampled_from(
            [
                *("resource/memory", "resource/cpu", "resource/block-iops", "os/linux/cpu-shares", "acme/x"),
                *("os/linux/oom-score-adj", "os/linux/capabilities-retain-set", "os/linux/capabilities-remove-set"),
            ]
        ),
        value=st.none()
        | st.integers()
        | st.builds(dict, limit=st.sampled_from(["1G", "0.5", "x", 7, None]), default=st.booleans() | st.none())
        | st.builds(dict, set=st.lists(st.sampled_from([*CAPABILITIES, "CAP_X", 1]), max_size=2)),
    ),
    max_size=2,
).map(tuple)


def tuples(strategy: st.SearchStrategy[object], max_size: int = 1) -> st.SearchStrategy[tuple[object, ...]]:
    """Return tuples of a few values."""
    return st.lists(strategy, max_size=max_size).map(tuple)


APPS = st.builds(
    App,
    exec=tuples(TEXTS, 3),
    user=st.sampled_from(["0", "root", "nobody", "1" * 5000]) | st.text(min_size=1, max_size=5),
    group=st.sampled_from(["0", "root"]) | st.text(min_size=1, max_size=5),
    supplementary_gids=tuples(IDS, 3),
    working_directory=st.just("") | PATHS,
    environment=st.dictionaries(st.sampled_from(["PATH", "HOME", "A", "container"]), TEXTS).map(
        lambda variables: tuple(variables.items())
    ),
    event_handlers=tuples(st.builds(EventHandler, name=st.just("pre-start"), exec=tuples(TEXTS))),
    mount_points=tuples(st.builds(MountPoint, name=NAMES, path=TEXTS)),
    ports=tuples(st.builds(Port, name=NAMES, protocol=st.just("tcp"), port=st.integers(1, 65535))),
    isolators=ISOLATORS,
)
VOLUMES = st.builds(
    Volume, name=NAMES, kind=st.just("empty"), mode=st.sampled_from(["0755", "7777"]), uid=IDS, gid=IDS
) | st.builds(Volume, name=NAMES, kind=st.just("host"), source=PATHS, recursive=st.none() | st.booleans())
MANIFESTS = st.builds(
    PodManifest,
    ac_version=st.just("0.8.11"),
    apps=st.lists(
        st.builds(
            RuntimeApp,
            name=NAMES,
            app=st.none() | APPS,
            read_only_root_fs=st.sampled_from([False, False, False, True]),
            mounts=tuples(st.builds(Mount, volume=NAMES, path=TEXTS, app_volume=st.none() | VOLUMES)),
            annotations=ANNOTATIONS,
        ),
        max_size=3,
        unique_by=lambda app: app.name,
    ).map(tuple),
    volumes=st.lists(VOLUMES, max_size=2, unique_by=lambda volume: volume.name).map(tuple),
    isolators=ISOLATORS,
    annotations=ANNOTATIONS,
    ports=tuples(st.builds(ExposedPort, name=NAMES, host_port=st.integers(1, 65535))),
)
IMAGES = st.builds(
    ImageManifest, ac_version=st.just("0.8.11"), name=NAMES, app=st.none() | APPS, annotations=ANNOTATIONS
)
RUN_FLAGS = st.builds(
    RunFlags,
    uuid=st.just(UUID),
    networks=st.sampled_from([(), ("none",), ("host",), ("default", "none"), ("all",)]),
    hostname=TEXTS,
    ipc=st.sampled_from(["", "parent", "x"]),
    debug=st.booleans(),
    disable_capabilities=st.booleans(),
    hosts_mode=st.sampled_from(["default", "host", "stage0"]),
    resolv_mode=st.sampled_from(["default", "host", "none"]),
)


@settings(deadline=None)
@given(MANIFESTS, IMAGES, RUN_FLAGS)
def test_any_valid_manifests_plan_or_are_refused(manifest: PodManifest, image: ImageManifest, flags: RunFlags) -> None:
    """A plan can be described and has an app for each of the manifest's; a refusal is one error of one line."""
    try:
        plan = plan_of(manifest, image, flags, ABLE)
    except (PlanError, ManifestError) as error:
        assert str(error)
        return
    assert [app.name for app in plan.apps] == [app.name for app in manifest.apps]
    assert all(
        app.process.candidates and all(path.startswith("/") for path in app.process.candidates) for app in plan.apps
    )
    assert plan.describe()


@settings(deadline=None)
@given(st.text("web0a/.", min_size=1, max_size=6), st.text("0123456789root", min_size=1, max_size=12), IDS)
def test_any_plain_app_plans(command: str, user: str, gid: int) -> None:
    """An app that only says what to run, with ids that are numbers, is never refused."""
    app = App(exec=(command,), user=str(gid), group=user if user.isdecimal() and int(user) <= MAX_ID else "root")
    [spec] = plan_of(replace(MANIFEST, apps=(RuntimeApp(name="web", app=app),))).apps
    assert spec.confinement.uid == gid


@pytest.mark.parametrize("hotplug", ["true", "false"])
def test_a_device_that_is_not_there_yet(hotplug: str) -> None:
    """Its volume is put off in an app whose devices come and go; in any other it is opened, which then fails."""
    sources = {"late": "/dev/late", "there": "/dev/null", "other": "/srv/late"}
    manifest = replace(
        annotated("minit/hotplug", hotplug),
        volumes=tuple(Volume(name=name, kind="host", source=source) for name, source in sources.items()),
        apps=(
            replace(MANIFEST.apps[0], mounts=tuple(Mount(volume=name, path=f"/{name}") for name in sources)),
            *MANIFEST.apps[1:],
        ),
    )
    [spec] = plan_of(manifest, facts=replace(FACTS, missing_devices=frozenset({"/dev/late"}))).apps
    late = [volume.source for volume in spec.storage.late_volumes]
    opened = [volume.source for volume in spec.storage.volumes]
    assert late == (["/dev/late"] if hotplug == "true" else [])
    assert sorted((*opened, *late)) == sorted(sources.values())


def test_the_pod_of_a_machine() -> None:
    """It has a namespace for its mounts and none else, and each app can be started again."""
    pod = Pod(manifest=MANIFEST, images=(("web", IMAGE),))
    plan = plan_machine(pod, replace(FLAGS, networks=()), FACTS)
    assert plan.namespaces == ("mnt",)
    assert [app.life.starts_again for app in plan.apps] == [True]
