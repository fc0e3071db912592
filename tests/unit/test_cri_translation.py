"""minit.cri.translation: sandboxes and containers in the words of the command line, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from google.protobuf.message import Message

from minit.base.goduration import parse_duration
from minit.cli.flags.environmentflags import parse_environment_files
from minit.cli.flags.isolatorflags import parse_caps_remove
from minit.cri.api import cri_pb2 as api
from minit.cri.filters import is_container_listed, is_sandbox_listed
from minit.cri.grpc.framing import CallError, Code
from minit.cri.node import Container, Sandbox, app_name
from minit.cri.owncommands import duration, failure
from minit.cri.records import Records
from minit.cri.translation.containerwords import container_words, environment_text
from minit.cri.translation.mountwords import mount_words
from minit.cri.translation.refusal import refuse_unknown_words
from minit.cri.translation.sandboxwords import sandbox_words
from minit.cri.translation.securitywords import check_pids
from minit.cri.translation.userwords import check_users, user_ids
from minit.manifest.capabilities import DEFAULT, capability_names

ROOT = Path(__file__).parents[2]
USUAL = (
    '--annotation=minit/protected-paths={"masked":[],"readOnly":[]}',
    "--annotation=minit/no-new-privileges=false",
    "--annotation=minit/image-groups=primary,supplementary",
    "--annotation=minit/late-executable=true",
    "--annotation=minit/make-working-directory=true",
    "--annotation=minit/plain-environment=true",
    "--annotation=minit/volumes-over-files=true",
    "--seccomp=guarded",
    *("--stdout=log+stream", "--stderr=log+stream"),
)
MAIN = api.ContainerMetadata(name="main")


def sandbox(**fields: Any) -> list[str]:
    """Return the words for a sandbox."""
    words = sandbox_words(api.PodSandboxConfig(**fields))
    assert words[:2] == ["--annotation=minit/pod-names=own", "--annotation=minit/shm-size=64Mi"]
    return words[2:]


def container(**fields: Any) -> list[str]:
    """Return the words for a container, without its image and name."""
    words = container_words(api.ContainerConfig(**({"metadata": MAIN} | fields)), "sha512-1")
    assert words[:2] == ["sha512-1", "--name=main-0"]
    return [word for word in words[2:] if word not in USUAL]


def secured(**fields: Any) -> list[str]:
    """Return the words for what a container may do."""
    return container(linux=security(**fields))


def test_sandboxes() -> None:
    """Names, name servers, ports and namespaces are options of `app sandbox`."""
    ports = [
        api.PortMapping(container_port=80, host_port=8080),
        api.PortMapping(container_port=81),
        api.PortMapping(protocol=api.UDP, container_port=53, host_port=53, host_ip="::1"),
    ]
    dns = api.DNSConfig(servers=["10.0.0.10"], searches=["svc.local"], options=["ndots:5"])
    assert sandbox(hostname="web", dns_config=dns, port_mappings=ports) == [
        "--hostname=web",
        "--dns=10.0.0.10",
        "--dns-search=svc.local",
        "--dns-opt=ndots:5",
        "--port=port0:tcp:80:0.0.0.0:8080",
        "--port=port2:udp:53:::1:53",
    ]
    options = api.NamespaceOption(network=api.NODE, ipc=api.NODE, pid=api.CONTAINER)
    context = api.LinuxSandboxSecurityContext(namespace_options=options)
    linux = api.LinuxPodSandboxConfig(security_context=context, cgroup_parent="/kubepods/burstable/pod5e5b")
    assert sandbox(linux=linux, port_mappings=ports) == [
        *("--net=host", f"--hostname={os.uname().nodename}"),
        *("--annotation=minit/cgroup-parent=/kubepods/burstable/pod5e5b", "--ipc=parent"),
    ]
    for root in ("", "/", "//"):
        assert sandbox(linux=api.LinuxPodSandboxConfig(cgroup_parent=root)) == sandbox()
    for bad in ("kubepods-pod5e5b.slice", "/a ", "/a /", "/ a", "/a\n", "//a", "/a\0"):
        with pytest.raises(CallError, match="linux.cgroup_parent: expected a path of cgroupfs"):
            sandbox(linux=api.LinuxPodSandboxConfig(cgroup_parent=bad))


def test_containers() -> None:
    """Commands, mounts, devices, limits and signals are options of `app add`; any path can be written."""
    resources = api.LinuxContainerResources(
        memory_limit_in_bytes=64 << 20, cpu_quota=50_000, cpu_period=100_000, cpu_shares=1, oom_score_adj=-997
    )
    assert container(command=["/bin/sh", "-c"], args=["a b"], working_dir="//none/../srv/") == [
        *("--working-dir=/srv", "--exec=/bin/sh", "--", "-c", "a b")
    ]
    options = api.NamespaceOption(pid=api.CONTAINER)
    linux = api.LinuxContainerConfig(security_context=api.LinuxContainerSecurityContext(namespace_options=options))
    assert container(linux=linux) == ["--annotation=minit/pid-namespace=app"]
    options = api.NamespaceOption(pid=api.TARGET, target_id="1f")
    security = api.LinuxContainerSecurityContext(namespace_options=options)
    config = api.ContainerConfig(metadata=MAIN, linux=api.LinuxContainerConfig(security_context=security))
    assert "--annotation=minit/pid-namespace=app:db-0" in container_words(config, "x", (), "db-0")
    assert container(args=["serve", "-v"]) == ["--cmd=serve", "--", "-v"]
    assert container(mounts=[api.Mount(container_path="/a,b", host_path="/x y&z", readonly=True)]) == [
        "--mnt-volume=name=mount0,kind=host,source=/x%20y%26z,target=/a%2Cb,readOnly=true",
        '--annotation=minit/mounts={"/a,b":{"propagation":"private","recursiveReadOnly":false}}',
    ]
    device = api.Device(container_path="x/", host_path="/dev/a", permissions="mr")
    assert container(mounts=[api.Mount(container_path="/x", host_path="/a")], devices=[device]) == [
        "--mnt-volume=name=device0,kind=host,source=/dev/a,target=/x,readOnly=true",
        '--annotation=minit/mounts={"/x":{"deviceAccess":"mr"}}',
    ]
    assert container(devices=[api.Device(host_path="/dev/fuse", permissions="rw")]) == [
        "--mnt-volume=name=device0,kind=host,source=/dev/fuse,target=/dev/fuse,readOnly=false",
        '--annotation=minit/mounts={"/dev/fuse":{"deviceAccess":"rw"}}',
    ]
    assert container(linux=api.LinuxContainerConfig(resources=resources)) == [
        *(f"--memory={64 << 20}", "--cpu-shares=2", "--oom-score-adj=-997"),
        '--annotation=minit/limits={"cpuQuota": 50000, "cpuPeriod": 100000}',
    ]
    assert container(stdin=True) == ["--stdin=stream"]
    assert {*USUAL} <= {*container_words(api.ContainerConfig(metadata=MAIN), "sha512-1")}
    assert container(tty=True) == ["--stdin=tty", "--stdout=log+tty", "--stderr=log+tty"]
    assert container(stop_signal=api.SIGNAL_SIGRTMINPLUS3) == ["--annotation=minit/stop-signal=RTMIN+3"]


def mount(**fields: Any) -> api.Mount:
    """Return a mount of /y at /x."""
    return api.Mount(container_path="/x", host_path="/y", **fields)


def test_mount_details() -> None:
    """Propagation, depth of read-only and options are details of a mount; what the interface forbids is refused."""
    both = api.PROPAGATION_BIDIRECTIONAL
    host = mount(propagation=api.PROPAGATION_HOST_TO_CONTAINER, mount_options=["nosuid", "noexec"])
    assert container(mounts=[host])[1:] == [
        '--annotation=minit/mounts={"/x":{"propagation":"slave","options":["noexec","nosuid"]}}'
    ]
    assert mount_words([mount(propagation=both)], [], privileged=True)[1:] == [
        '--annotation=minit/mounts={"/x":{"propagation":"shared"}}'
    ]
    deep = mount(readonly=True, recursive_read_only=True)
    assert container(mounts=[deep])[1:] == [
        '--annotation=minit/mounts={"/x":{"propagation":"private","recursiveReadOnly":true}}'
    ]
    of_image = api.Mount(container_path="/x", image=api.ImageSpec(image="sha512-2"), image_sub_path="a", readonly=True)
    assert container(mounts=[of_image]) == [
        "--mnt-volume=name=mount0,kind=image,source=sha512-2,target=/x,readOnly=true",
        '--annotation=minit/mounts={"/x":{"propagation":"private","subPath":"a"}}',
    ]
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


def sandbox_of(options: api.NamespaceOption) -> list[str]:
    """Return the words for a sandbox with these namespaces."""
    context = api.LinuxSandboxSecurityContext(namespace_options=options)
    return sandbox(linux=api.LinuxPodSandboxConfig(security_context=context))


def test_users_of_a_sandbox() -> None:
    """One range for users and groups, which begins with root; containers and their mounts have the same."""
    assert "--private-users=131072:65536" in sandbox_of(users_of())
    for none in (api.NamespaceOption(), users_of(mode=api.NODE, uids=[], gids=[])):
        assert not any(word.startswith("--private-users") for word in sandbox_of(none))
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
    assert "--pid=host" in sandbox_of(host)
    assert "--pid=host" not in sandbox_of(own)
    assert not any("pid-namespace" in word for word in secured(namespace_options=host))
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
    words = mount_words([mapped, plain, hidden, shown, mapped], [], ids, privileged=False)
    assert [word for word in words if "idmap" in word] == ["--annotation=minit/idmap=mount4"]
    assert not any("idmap" in word for word in mount_words([plain], [], ids, privileged=False))
    for bad in (
        (mapped, None),
        (api.Mount(host_path="/a", container_path="/a", uidMappings=[MAPPING]), ids),
        (api.Mount(host_path="/a", container_path="/a", uidMappings=[OTHER], gidMappings=[OTHER]), ids),
    ):
        with pytest.raises(CallError, match=r"mounts\[0\].uidMappings: expected the range of the sandbox"):
            mount_words([bad[0]], [], bad[1], privileged=False)


def test_users_and_capabilities() -> None:
    """A user without a group has group 0; capabilities are added to the default ones, then dropped."""
    user = api.Int64Value(value=1000)
    assert secured(run_as_user=user, supplemental_groups=[5, 6], readonly_rootfs=True) == [
        *("--user=1000", "--group=0", "--supplementary-gids=5,6", "--readonly-rootfs")
    ]
    assert secured(run_as_username="web", run_as_group=user) == [
        *("--user=web", "--group=1000", "--annotation=minit/image-groups=supplementary")
    ]
    assert secured(run_as_user=user, supplemental_groups_policy=api.Strict) == [
        *("--user=1000", "--group=0", "--annotation=minit/image-groups=primary")
    ]
    assert secured(run_as_user=user, run_as_group=user, supplemental_groups_policy=api.Strict) == [
        *("--user=1000", "--group=1000")
    ]
    config = api.ContainerConfig(metadata=MAIN)
    assert "--annotation=minit/image-groups=supplementary" in container_words(config, "", image_has_group=True)
    assert secured(masked_paths=["/proc/kcore", "/a b"], readonly_paths=["/proc/sys"]) == [
        '--annotation=minit/protected-paths={"masked":["/proc/kcore","/a b"],"readOnly":["/proc/sys"]}'
    ]
    assert secured(privileged=True, capabilities=api.Capability(drop_capabilities=["ALL"])) == [
        "--annotation=minit/privileged=true"
    ]
    profile = api.SecurityProfile(profile_type=api.SecurityProfile.Localhost, localhost_ref="web-1")
    for fields in ({"apparmor": profile}, {"apparmor_profile": "localhost/web-1"}):
        assert secured(**fields) == ["--annotation=minit/apparmor-profile=web-1"]
    for fields in ({"apparmor": api.SecurityProfile()}, {"apparmor_profile": "runtime/default"}):
        assert secured(**fields) == []
    assert secured(no_new_privs=True) == ["--annotation=minit/no-new-privileges=true"]
    [none] = secured(capabilities=api.Capability(drop_capabilities=["ALL"]))
    assert parse_caps_remove(*none.split("=")).value == {"set": list(capability_names(DEFAULT))}
    [kept] = secured(capabilities=api.Capability(drop_capabilities=["all"], add_capabilities=["net_admin"]))
    assert kept == "--caps-retain=CAP_NET_ADMIN"
    [kept] = secured(capabilities=api.Capability(drop_capabilities=["CAP_CHOWN"], add_capabilities=["SYS_TIME"]))
    assert "CAP_SYS_TIME" in kept and "CAP_KILL" in kept and "CAP_CHOWN" not in kept
    [kept] = secured(capabilities=api.Capability(drop_capabilities=["ALL"], add_capabilities=["ALL", "CHOWN"]))
    assert kept == "--caps-retain=CAP_CHOWN"


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
    text = environment_text(api.ContainerConfig(envs=pairs)).decode()
    assert parse_environment_files("", [("", text)]) == (
        ("A", "2"),
        ("B", "=x"),
        ("a.b-C", " x\r"),
        ("#-L 1", "#1\n2=3\n"),
    )
    assert parse_environment_files("", [("", environment_text(api.ContainerConfig()).decode())]) == ()
    assert environment_text(api.ContainerConfig(envs=pairs[:1]), "web") == b"HOSTNAME=web\0A=1\0"
    own = api.ContainerConfig(envs=[api.KeyValue(key="HOSTNAME", value=b"own")])
    assert environment_text(own, "web") == b"HOSTNAME=own\0"
    with pytest.raises(CallError, match="envs: A: expected a value without a NUL"):
        environment_text(api.ContainerConfig(envs=[api.KeyValue(key="A", value=b"1\0B=2")]))
    for name in ("", "A=B", "=", "A=1\nB", "A\nB", "A\0", "日"):
        with pytest.raises(CallError, match="expected a name"):
            environment_text(api.ContainerConfig(envs=[api.KeyValue(key=name, value=b"1")]))


def test_times() -> None:
    """A time that no option can have is a year, and one that is over is none."""
    assert [duration(seconds) for seconds in (-(2**63), 0, 30, 2**63 - 1)] == ["0s", "0s", "30s", "31536000s"]
    assert parse_duration(duration(2**63 - 1)) == 31536000


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ("stage1 app add: no user\nadd: app/add failed: exit status 254\n", "app/add failed: exit status 254: no user"),
        ("rm: it is busy\nrm: failed to remove one or more pods\n", "failed to remove one or more pods: it is busy"),
        ("add: warning: it is old\nadd: no image\x1b\n", "no image\\x1b"),
        ("killed", "killed"),
        ("", ""),
    ],
)
def test_reasons_of_failures(errors: str, told: str) -> None:
    """The error of a command has what stage1 said before it, but no warning."""
    assert failure(errors.encode()) == told


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
        refuse_unknown_words(message, "config")
    known = api.ContainerConfig(annotations={"a": "b"}, stop_signal=api.SIGNAL_SIGUSR1, mounts=[api.Mount()])
    refuse_unknown_words(known, "config")
