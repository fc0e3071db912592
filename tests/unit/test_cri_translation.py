"""minit.cri.translation: sandboxes and containers as requests to the service of pods, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from google.protobuf.message import Message

from minit.base.idrange import IdRange
from minit.base.value import replace
from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import CallError, Code
from minit.cri.hands import limited
from minit.cri.node import Container, Sandbox, app_name
from minit.cri.records import Records
from minit.cri.refusal import check_message
from minit.cri.statuses import is_container_listed, is_sandbox_listed
from minit.cri.translation.container import app_request, check_pids, environment
from minit.cri.translation.sandbox import check_users, run_options, sandbox_request, user_ids
from minit.manifest.app import Isolator, Port
from minit.manifest.capabilities import DEFAULT, capability_names
from minit.manifest.pod import ExposedPort, Mount, Volume
from minit.pods.requests import PodRequest, Stage1Request
from minit.stage0.pods.appsection import AppOverrides
from minit.stage0.pods.nameservice import NameService
from minit.stage0.stage1.entrypoints import RunOptions

ROOT = Path(__file__).parents[2]
USUAL = {
    "minit/protected-paths": '{"masked":[],"readOnly":[]}',
    "minit/no-new-privileges": "false",
    "minit/image-groups": "primary,supplementary",
    "minit/late-executable": "true",
    "minit/make-working-directory": "true",
    "minit/plain-environment": "true",
    "minit/volumes-over-files": "true",
}
PLAIN = AppOverrides(
    name="main-0", ignores_healthcheck=True, seccomp="guarded", stdout="log+stream", stderr="log+stream"
)
MAIN = api.ContainerMetadata(name="main")
NODE = api.PodSandboxConfig()


def sandbox(**fields: Any) -> PodRequest:
    """Return the request for a sandbox, with the annotations that not all have."""
    request = sandbox_request(api.PodSandboxConfig(**fields), Stage1Request())
    habits = (("minit/pod-names", "own"), ("minit/shm-size", "64Mi"))
    assert request.is_mutable and {*habits} <= {*request.annotations}
    return replace(request, annotations=tuple(pair for pair in request.annotations if pair not in habits))


def container(**fields: Any) -> AppOverrides:
    """Return the settings for a container, with the annotations that not all have."""
    options = {name: fields.pop(name) for name in ("target", "ids", "image_has_group") if name in fields}
    config = api.ContainerConfig(**({"metadata": MAIN} | fields))
    request = app_request(NODE, config, "sha512-1", **options)
    assert request.reference == "sha512-1"
    usual = {*USUAL.items()}
    return replace(
        request.overrides, annotations=tuple(pair for pair in request.overrides.annotations if pair not in usual)
    )


def secured(**fields: Any) -> AppOverrides:
    """Return the settings for what a container may do."""
    return container(linux=security(**fields))


def annotated(**fields: Any) -> dict[str, str]:
    """Return the annotations of a container that not all have."""
    return dict(container(**fields).annotations)


def volume(name: str, source: str, target: str, *, kind: str = "host", read_only: bool = False) -> Mount:
    """Return the mount of a volume of the app's own."""
    own = Volume(name=name, kind=kind, source=source, read_only=read_only)
    return Mount(volume=name, path=target, app_volume=own)


def test_sandboxes() -> None:
    """Names, name servers, ports and namespaces are those of the pod, and of its run."""
    ports = [
        api.PortMapping(container_port=80, host_port=8080),
        api.PortMapping(container_port=81),
        api.PortMapping(protocol=api.UDP, container_port=53, host_port=53, host_ip="::1"),
    ]
    dns = api.DNSConfig(servers=["10.0.0.10"], searches=["svc.local"], options=["ndots:5"])
    config = api.PodSandboxConfig(hostname="web", dns_config=dns, port_mappings=ports)
    service = NameService(resolv="stage0", nameservers=("10.0.0.10",), search=("svc.local",), options=("ndots:5",))
    assert run_options(config, "lan") == RunOptions(
        networks=("lan",), hostname="web", name_service=service, mutable=True
    )
    config.metadata.name, config.metadata.namespace = "web-1", "shop;x"
    assert run_options(config, "lan").networks == ("lan:IgnoreUnknown=1;K8S_POD_NAME=web-1",)
    assert run_options(config, "lan:IP=10.0.0.9").networks == ("lan:IP=10.0.0.9;IgnoreUnknown=1;K8S_POD_NAME=web-1",)
    assert run_options(config, "lan,wan").networks == ("lan,wan",)
    assert run_options(config, None).networks == ()
    web, names = Port(name="port0", protocol="tcp", port=80), Port(name="port2", protocol="udp", port=53)
    assert sandbox(port_mappings=ports).ports == (
        ExposedPort(name="port0", host_port=8080, host_ip="0.0.0.0", pod_port=web),
        ExposedPort(name="port2", host_port=53, host_ip="::1", pod_port=names),
    )
    options = api.NamespaceOption(network=api.NODE, ipc=api.NODE, pid=api.CONTAINER)
    context = api.LinuxSandboxSecurityContext(namespace_options=options)
    linux = api.LinuxPodSandboxConfig(security_context=context, cgroup_parent="/kubepods/burstable/pod5e5b")
    of_host = sandbox(linux=linux, port_mappings=ports)
    assert (of_host.ports, of_host.host_pids) == ((), False)
    assert of_host.annotations == (("minit/cgroup-parent", "/kubepods/burstable/pod5e5b"),)
    assert run_options(api.PodSandboxConfig(linux=linux), "lan") == RunOptions(
        networks=("host",), hostname=os.uname().nodename, ipc="parent", mutable=True
    )
    for root in ("", "/", "//"):
        assert sandbox(linux=api.LinuxPodSandboxConfig(cgroup_parent=root)) == sandbox()
    for bad in ("kubepods-pod5e5b.slice", "/a ", "/a /", "/ a", "/a\n", "//a", "/a\0"):
        with pytest.raises(CallError, match="linux.cgroup_parent: expected a path of cgroupfs"):
            sandbox(linux=api.LinuxPodSandboxConfig(cgroup_parent=bad))


@pytest.mark.parametrize(
    ("port", "named"),
    [
        (api.PortMapping(container_port=80, host_port=65536), "host_port: expected a number from 1 to 65535"),
        (api.PortMapping(container_port=0, host_port=80), "container_port: expected a number from 1 to 65535"),
        (api.PortMapping(container_port=1, host_port=1, host_ip="localhost"), "host_ip: expected an IP address"),
        (api.PortMapping(container_port=1, host_port=1, protocol=api.SCTP), "protocol: expected TCP or UDP"),
    ],
)
def test_ports_that_cannot_be(port: api.PortMapping, named: str) -> None:
    """Their field is named."""
    with pytest.raises(CallError, match=rf"^port_mappings\[0\]\.{named}"):
        sandbox(port_mappings=[port])


def test_containers() -> None:
    """Commands, mounts, devices, limits and signals are settings of an app."""
    resources = api.LinuxContainerResources(
        memory_limit_in_bytes=64 << 20, cpu_quota=50_000, cpu_period=100_000, cpu_shares=1, oom_score_adj=-997
    )
    assert container(command=["/bin/sh", "-c"], args=["a b"], working_dir="//none/../srv/") == replace(
        PLAIN, working_directory="/srv", exec="/bin/sh", arguments=("-c", "a b")
    )
    options = api.NamespaceOption(pid=api.CONTAINER)
    assert secured(namespace_options=options).annotations == (("minit/pid-namespace", "app"),)
    options = api.NamespaceOption(pid=api.TARGET, target_id="1f")
    assert annotated(linux=security(namespace_options=options), target="db-0") == {"minit/pid-namespace": "app:db-0"}
    assert container(args=["serve", "-v"]) == replace(PLAIN, command="serve", arguments=("-v",))
    made = container(mounts=[api.Mount(container_path="/a,b", host_path="/x y&z", readonly=True)])
    assert made.mounts == (volume("mount0", "/x y&z", "/a,b", read_only=True),)
    details = '{"/a,b":{"propagation":"private","recursiveReadOnly":false}}'
    assert dict(made.annotations) == {"minit/mounts": details}
    device = api.Device(container_path="x/", host_path="/dev/a", permissions="mr")
    made = container(mounts=[api.Mount(container_path="/x", host_path="/a")], devices=[device])
    assert made.mounts == (volume("device0", "/dev/a", "/x", read_only=True),)
    assert dict(made.annotations) == {"minit/mounts": '{"/x":{"deviceAccess":"mr"}}'}
    made = container(devices=[api.Device(host_path="/dev/fuse", permissions="rw")])
    assert made.mounts == (volume("device0", "/dev/fuse", "/dev/fuse"),)
    made = container(linux=api.LinuxContainerConfig(resources=resources))
    assert dict(made.annotations) == {"minit/limits": '{"cpuQuota": 50000, "cpuPeriod": 100000}'}
    size = str(64 << 20)
    assert made.isolators == (
        Isolator(name="resource/memory", value={"default": False, "request": size, "limit": size}),
        Isolator(name="os/linux/cpu-shares", value=2),
        Isolator(name="os/linux/oom-score-adj", value=-997),
    )
    assert container() == PLAIN
    assert container(stdin=True) == replace(PLAIN, stdin="stream")
    assert container(tty=True) == replace(PLAIN, stdin="tty", stdout="log+tty", stderr="log+tty")
    assert annotated(stop_signal=api.SIGNAL_SIGRTMINPLUS3) == {"minit/stop-signal": "RTMIN+3"}


def mount(**fields: Any) -> api.Mount:
    """Return a mount of /y at /x."""
    return api.Mount(container_path="/x", host_path="/y", **fields)


def details(**fields: Any) -> str:
    """Return what stage1 is told of the mounts of a container."""
    return annotated(**fields)["minit/mounts"]


def test_mount_details() -> None:
    """Propagation, depth of read-only and options are details of a mount; what the interface forbids is refused."""
    both = api.PROPAGATION_BIDIRECTIONAL
    host = mount(propagation=api.PROPAGATION_HOST_TO_CONTAINER, mount_options=["nosuid", "noexec"])
    assert details(mounts=[host]) == '{"/x":{"propagation":"slave","options":["noexec","nosuid"]}}'
    shared = details(mounts=[mount(propagation=both)], linux=security(privileged=True))
    assert shared == '{"/x":{"propagation":"shared"}}'
    deep = mount(readonly=True, recursive_read_only=True)
    assert details(mounts=[deep]) == '{"/x":{"propagation":"private","recursiveReadOnly":true}}'
    of_image = api.Mount(container_path="/x", image=api.ImageSpec(image="sha512-2"), image_sub_path="a", readonly=True)
    assert container(mounts=[of_image]).mounts == (volume("mount0", "sha512-2", "/x", kind="image", read_only=True),)
    assert details(mounts=[of_image]) == '{"/x":{"propagation":"private","subPath":"a"}}'
    for wrong, message in (
        (mount(propagation=both), "propagation: expected another one in a container that is not priv"),
        (mount(recursive_read_only=True), "recursive_read_only: expected readonly"),
        (
            mount(readonly=True, recursive_read_only=True, propagation=api.PROPAGATION_HOST_TO_CONTAINER),
            "recursive_read_only: expected PROPAGATION_PRIVATE",
        ),
        (api.Mount(container_path="/x", host_path="/x\0"), r"mounts\[0\].host_path: expected an absolute path"),
        (api.Mount(container_path="/x", host_path="x"), r"mounts\[0\].host_path: expected an absolute path"),
        (api.Mount(container_path="/x/..", host_path="/x"), r"mounts\[0\].container_path: expected a path below /"),
        (mount(mount_options=["exec"]), "mount_options: expected nodev, noexec, nosuid, not exec"),
    ):
        with pytest.raises(CallError, match=message):
            container(mounts=[wrong])


MAPPING = api.IDMapping(host_id=131072, length=65536)
OTHER = api.IDMapping(host_id=1, length=65536)


def users_of(**fields: Any) -> api.NamespaceOption:
    """Return the namespaces of a pod with users of its own."""
    usual: dict[str, Any] = {"mode": api.POD, "uids": [MAPPING], "gids": [MAPPING]}
    return api.NamespaceOption(userns_options=api.UserNamespace(**(usual | fields)))


def sandbox_of(options: api.NamespaceOption) -> PodRequest:
    """Return the request for a sandbox with these namespaces."""
    context = api.LinuxSandboxSecurityContext(namespace_options=options)
    return sandbox(linux=api.LinuxPodSandboxConfig(security_context=context))


def test_users_of_a_sandbox() -> None:
    """One range for users and groups, which begins with root; containers and their mounts have the same."""
    assert sandbox_of(users_of()).private_users == IdRange(shift=131072, count=65536)
    for none in (api.NamespaceOption(), users_of(mode=api.NODE, uids=[], gids=[])):
        assert sandbox_of(none).private_users is False
    inner = api.IDMapping(host_id=131072, container_id=1, length=65536)
    wrong: list[dict[str, Any]] = [
        {"mode": api.CONTAINER},
        {"mode": api.TARGET},
        {"uids": [MAPPING, OTHER], "gids": [MAPPING, OTHER]},
        {"gids": [OTHER]},
        {"gids": []},
        {"uids": [inner], "gids": [inner]},
        dict.fromkeys(("uids", "gids"), [api.IDMapping(host_id=0, length=65536)]),
        dict.fromkeys(("uids", "gids"), [api.IDMapping(host_id=(1 << 32) - 65536, length=65536)]),
    ]
    for bad in wrong:
        with pytest.raises(CallError, match="userns_options") as caught:
            sandbox_of(users_of(**bad))
        assert caught.value.code == Code.INVALID_ARGUMENT
    ids = user_ids(users_of())
    check_users(users_of(), ids)
    check_users(api.NamespaceOption(), ids)
    for asked, there in ((users_of(uids=[OTHER], gids=[OTHER]), ids), (users_of(), None)):
        with pytest.raises(CallError, match=r"userns_options: expected those of the sandbox"):
            check_users(asked, there)


def test_the_processes_of_the_host() -> None:
    """A container has them in a sandbox that has them, be it as that sandbox's, and nowhere else."""
    host, own = api.NamespaceOption(pid=api.NODE), api.NamespaceOption(pid=api.CONTAINER)
    assert sandbox_of(host).host_pids and not sandbox_of(own).host_pids
    assert secured(namespace_options=host) == PLAIN
    check_pids(host, host)
    check_pids(api.NamespaceOption(pid=api.POD), host)
    for container_has, sandbox_has in ((host, own), (own, host)):
        with pytest.raises(CallError, match=r"namespace_options.pid: expected .*NODE"):
            check_pids(container_has, sandbox_has)


def test_mounts_with_the_ids_of_a_sandbox() -> None:
    """Those with its range keep their owners; any other one is refused."""
    ids = user_ids(users_of())
    mapped = api.Mount(host_path="/a", container_path="/a", uidMappings=[MAPPING], gidMappings=[MAPPING])
    plain = api.Mount(host_path="/b", container_path="/b")
    hidden = api.Mount(host_path="/c", container_path="/c", uidMappings=[MAPPING], gidMappings=[MAPPING])
    shown = api.Mount(host_path="/d", container_path="/c")
    assert annotated(mounts=[mapped, plain, hidden, shown, mapped], ids=ids)["minit/idmap"] == "mount4"
    assert "minit/idmap" not in annotated(mounts=[plain], ids=ids)
    for bad in (
        (mapped, None),
        (api.Mount(host_path="/a", container_path="/a", uidMappings=[MAPPING]), ids),
        (api.Mount(host_path="/a", container_path="/a", uidMappings=[OTHER], gidMappings=[OTHER]), ids),
    ):
        with pytest.raises(CallError, match=r"mounts\[0\].uidMappings: expected the range of the sandbox"):
            container(mounts=[bad[0]], ids=bad[1])


def test_users() -> None:
    """A user without a group has group 0; the groups of the image are those that the interface has."""
    user = api.Int64Value(value=1000)
    made = secured(run_as_user=user, supplemental_groups=[5, 6], readonly_rootfs=True)
    assert made == replace(PLAIN, user="1000", group="0", supplementary_gids=(5, 6), read_only_root_fs=True)
    made = secured(run_as_username="web", run_as_group=user)
    assert (made.user, made.group, dict(made.annotations)) == (
        *("web", "1000"),
        {"minit/image-groups": "supplementary"},
    )
    made = secured(run_as_user=user, supplemental_groups_policy=api.Strict)
    assert (made.group, dict(made.annotations)) == ("0", {"minit/image-groups": "primary"})
    made = secured(run_as_user=user, run_as_group=user, supplemental_groups_policy=api.Strict)
    assert (made.group, made.annotations) == ("1000", ())
    assert annotated(image_has_group=True) == {"minit/image-groups": "supplementary"}


def test_confinement() -> None:
    """Paths, profiles and privileges are annotations; a privileged container has neither filter nor capabilities."""
    assert secured(masked_paths=["/proc/kcore", "/a b"], readonly_paths=["/proc/sys"]).annotations == (
        ("minit/protected-paths", '{"masked":["/proc/kcore","/a b"],"readOnly":["/proc/sys"]}'),
    )
    made = secured(privileged=True, capabilities=api.Capability(drop_capabilities=["ALL"]))
    assert made == replace(PLAIN, seccomp=None, annotations=(("minit/privileged", "true"),))
    profile = api.SecurityProfile(profile_type=api.SecurityProfile.Localhost, localhost_ref="web-1")
    for fields in ({"apparmor": profile}, {"apparmor_profile": "localhost/web-1"}):
        assert secured(**fields).annotations == (("minit/apparmor-profile", "web-1"),)
    for fields in ({"apparmor": api.SecurityProfile()}, {"apparmor_profile": "runtime/default"}):
        assert secured(**fields) == PLAIN
    assert secured(no_new_privs=True).annotations == (("minit/no-new-privileges", "true"),)
    for kind, word in (("RuntimeDefault", "by-capabilities"), ("Unconfined", "unconfined")):
        asked = api.SecurityProfile(profile_type=kind)
        assert secured(seccomp=asked).seccomp == word
    profile = api.SecurityProfile(profile_type=api.SecurityProfile.Localhost, localhost_ref="/p.json")
    for fields in ({"seccomp": profile}, {"seccomp_profile_path": "localhost//p.json"}):
        assert secured(**fields).seccomp == "profile=/p.json"


@pytest.mark.parametrize(
    ("add", "drop", "name", "has", "lacks"),
    [
        ([], ["ALL"], "remove", [*capability_names(DEFAULT)], []),
        (["net_admin"], ["all"], "retain", ["CAP_NET_ADMIN"], ["CAP_KILL"]),
        (["SYS_TIME"], ["CAP_CHOWN"], "retain", ["CAP_SYS_TIME", "CAP_KILL"], ["CAP_CHOWN"]),
        (["ALL", "CHOWN"], ["ALL"], "retain", ["CAP_CHOWN"], ["CAP_KILL"]),
        (["ALL"], ["KILL"], "retain", ["CAP_SYS_ADMIN"], ["CAP_KILL"]),
    ],
)
def test_capabilities(add: list[str], drop: list[str], name: str, has: list[str], lacks: list[str]) -> None:
    """They are added to the default ones, then dropped."""
    [found] = secured(capabilities=api.Capability(add_capabilities=add, drop_capabilities=drop)).isolators
    value = cast("dict[str, list[str]]", found.value)["set"]
    assert found.name == f"os/linux/capabilities-{name}-set"
    assert {*has} <= {*value} and not {*lacks} & {*value}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"run_as_group": api.Int64Value(value=1)}, "run_as_group: expected a user with it"),
        (
            {"run_as_user": api.Int64Value(value=1), "run_as_username": "web"},
            "run_as_username: expected none with run_as_user",
        ),
        ({"capabilities": api.Capability(add_capabilities=["FLY"])}, "not CAP_FLY"),
        (
            {"namespace_options": api.NamespaceOption(pid=api.TARGET, target_id="other")},
            "namespace_options.target_id: expected a container of the sandbox",
        ),
        ({"apparmor_profile": "web-1"}, "apparmor_profile: expected runtime/default, unconfined or localhost/NAME"),
        (
            {"seccomp": api.SecurityProfile(profile_type=api.SecurityProfile.Localhost)},
            "seccomp: the path of a profile",
        ),
    ],
)
def test_what_is_not_there_yet(fields: dict[str, Any], named: str) -> None:
    """No container is less confined than it was asked to be: the field is named."""
    with pytest.raises(CallError) as caught:
        secured(**fields)
    assert named in str(caught.value)
    assert caught.value.code == Code.INVALID_ARGUMENT


def test_environments() -> None:
    """The last of several of a name counts, values may have several lines, and what is no name is refused."""
    pairs = [api.KeyValue(key="A", value=b"1"), api.KeyValue(key="B", value=b"=x"), api.KeyValue(key="A", value=b"2")]
    pairs += [api.KeyValue(key="a.b-C", value=b" x\r"), api.KeyValue(key="#-L 1", value=b"#1\n2=3\n")]
    assert environment(api.ContainerConfig(envs=pairs)) == (
        ("A", "2"),
        ("B", "=x"),
        ("a.b-C", " x\r"),
        ("#-L 1", "#1\n2=3\n"),
    )
    assert environment(api.ContainerConfig()) == ()
    assert environment(api.ContainerConfig(envs=pairs[:1]), "web") == (("HOSTNAME", "web"), ("A", "1"))
    own = api.ContainerConfig(envs=[api.KeyValue(key="HOSTNAME", value=b"own")])
    assert environment(own, "web") == (("HOSTNAME", "own"),)
    for value, wanted in ((b"1\0B=2", "without a NUL"), (b"\xff", "in UTF-8")):
        with pytest.raises(CallError, match=f"envs: A: expected a value {wanted}"):
            environment(api.ContainerConfig(envs=[api.KeyValue(key="A", value=value)]))
    for name in ("", "A=B", "=", "A=1\nB", "A\nB", "A\0", "日"):
        with pytest.raises(CallError, match="expected a name"):
            environment(api.ContainerConfig(envs=[api.KeyValue(key=name, value=b"1")]))


def test_times() -> None:
    """A time that nobody waits for is a year, and one that is over is none."""
    assert [limited(seconds) for seconds in (-(2**63), 0, 30, 2**63 - 1)] == [0, 0, 30, 31536000]


def test_names_of_apps() -> None:
    """Any two containers of a sandbox have apps of different names, which are ACNames."""
    names = ["web", "Web", "we_b", "we.b", "-", "日本"]
    made = [app_name(api.ContainerMetadata(name=name, attempt=attempt)) for name in names for attempt in (0, 1)]
    assert len(set(made)) == len(made)
    assert made[:2] == ["web-0", "web-1"]
    assert all(name.strip("-") == name and name.replace("-", "").isalnum() and name.islower() for name in made)


def test_filters(tmp_path: Path) -> None:
    """All parts of a filter have to agree; ids may be shortened."""
    records = Records(tmp_path)
    config = api.PodSandboxConfig(metadata=api.PodSandboxMetadata(name="a"), labels={"x": "1"})
    record = records.keep(api.RunPodSandboxRequest(config=config))
    found = Sandbox(record, "2d381b2a-0000")
    for wanted, is_listed in (
        (api.PodSandboxFilter(), True),
        (api.PodSandboxFilter(id="2d38", label_selector={"x": "1"}), True),
        (api.PodSandboxFilter(id="2d38", label_selector={"x": "2"}), False),
        (api.PodSandboxFilter(state=api.PodSandboxStateValue(state=api.SANDBOX_READY)), False),
    ):
        assert is_sandbox_listed(found, wanted) is is_listed
    asked = api.CreateContainerRequest(config=api.ContainerConfig(metadata=MAIN))
    kept = Container(found, record.keep_container("f" * 64, asked))
    assert is_container_listed(kept, api.ContainerFilter(id="ff", pod_sandbox_id="2d"))
    assert not is_container_listed(kept, api.ContainerFilter(pod_sandbox_id="3d"))


def test_records(tmp_path: Path) -> None:
    """What was kept is found again as it was, without what was cut short before there was a request."""
    records = Records(tmp_path)
    request = api.RunPodSandboxRequest(config=api.PodSandboxConfig(metadata=api.PodSandboxMetadata(name="a", uid="1")))
    record = records.keep(request)
    (tmp_path / "cri/half").mkdir()
    assert (record.made_ns, record.uuid) == (None, None)
    record.uuid_file.write_text("2d381b2a\n")
    record.mark_made()
    record.keep_container("0" * 64, api.CreateContainerRequest(pod_sandbox_id="2d381b2a"))
    [found] = Records(tmp_path).all()
    assert (found.read(), found.uuid, found.made_ns is not None) == (request, "2d381b2a", True)
    [made] = found.containers()
    assert (made.id, made.read().pod_sandbox_id, made.made_ns) == ("0" * 64, "2d381b2a", None)
    found.remove()
    found.remove()
    assert list((tmp_path / "cri").iterdir()) == []


def test_the_messages_are_made_of_their_description(tmp_path: Path) -> None:
    """`make proto` would change nothing."""
    protoc = Path(sys.executable).with_name("protoc")
    command: list[str | Path] = [protoc, f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", "minit/cri/api/cri.proto"]
    subprocess.run(command, cwd=ROOT, check=True)
    for name in ("cri_pb2.py", "cri_pb2.pyi"):
        place = f"minit/cri/api/{name}"
        assert (tmp_path / place).read_text() == (ROOT / place).read_text()


def security(**fields: Any) -> api.LinuxContainerConfig:
    """Return what a container may do."""
    return api.LinuxContainerConfig(security_context=api.LinuxContainerSecurityContext(**fields))


UNKNOWN = cast("Any", 99)  # by a client of a later interface


@pytest.mark.parametrize(
    ("message", "place"),
    [
        (api.ContainerConfig(stop_signal=UNKNOWN), "config.stop_signal"),
        (api.ContainerConfig(mounts=[api.Mount(), api.Mount(propagation=UNKNOWN)]), "config.mounts.propagation"),
        (
            api.ContainerConfig(linux=security(seccomp=api.SecurityProfile(profile_type=UNKNOWN))),
            "config.linux.security_context.seccomp.profile_type",
        ),
        (
            api.ContainerConfig(linux=security(namespace_options=api.NamespaceOption(pid=UNKNOWN))),
            "config.linux.security_context.namespace_options.pid",
        ),
        (
            api.PodSandboxConfig(port_mappings=[api.PortMapping(protocol=UNKNOWN)], labels={"a": "b"}),
            "config.port_mappings.protocol",
        ),
    ],
)
def test_values_of_no_enumeration(message: Message, place: str) -> None:
    """A word that is not known may be a restriction: it is refused at any depth, and those that are known are not."""
    with pytest.raises(CallError, match=f"^{place}: expected one of "):
        check_message(message, "config")
    known = api.ContainerConfig(annotations={"a": "b"}, stop_signal=api.SIGNAL_SIGUSR1, mounts=[api.Mount()])
    check_message(known, "config")


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (api.ContainerConfig(args=["a\0"]), "^config.args: a value has a NUL"),
        (api.ContainerConfig(labels={"a": "\0"}), "^config.labels: a value has a NUL"),
        (api.ContainerConfig(args=["a" * (32 * 4096)]), "^config.args: a value has at most 131072 bytes"),
        (api.ContainerConfig(args=["a" * 100_000] * 22), "^config: expected at most 2097152 bytes"),
    ],
)
def test_texts_that_no_program_can_have(config: api.ContainerConfig, named: str) -> None:
    """They are refused at any depth, with their field."""
    with pytest.raises(CallError, match=named):
        check_message(config, "config")
