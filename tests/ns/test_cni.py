"""minit.network.pluginlist: what plugins are given, what becomes of their answers, what is left of failures."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from minit.base.errors import MinitError, NetworkError
from minit.manifest.networkconfig import parse_network_config
from minit.network.addresses import parse_address, parse_interface
from minit.network.pluginlist import attach, check, detach, plugin_path
from minit.network.pluginrequests import search_for_pod
from minit.network.protocol import Address, Dns, Request, Result
from minit.plan.networks.networkplan import PlannedNetwork
from tests.support.cniplugin import calls, install_plugin
from tests.support.inotify import MOVED_TO, Watch
from tests.support.processes import is_alive
from tests.support.waiting import wait_for

ID = "8f1b6a3e-3c3e-4b1c-9a57-000000000001"
OLD_RESULT = {"ip4": {"ip": "10.9.0.2/24", "gateway": "10.9.0.1"}, "dns": {"nameservers": ["10.9.0.1"]}}
NEW_RESULT = {"cniVersion": "1.0.0", "ips": [{"address": "10.9.0.2/24"}], "interfaces": [{"name": "eth0", "mtu": 1400}]}


class World:
    """A pod directory, which is the working directory, and a place for plugins."""

    def __init__(self, directory: Path) -> None:
        self.pod = directory / "pod"
        self.local = directory / "local"
        self.plugins = self.local / "net.d"
        self.system = directory / "system"
        self.record = directory / "record"
        self.pod.mkdir()
        self.search = search_for_pod(str(self.local), (str(self.system),))

    def network(self, document: dict[str, Any], args: str = "", file_name: str = "10-lan.conf") -> PlannedNetwork:
        """Return a network as planned, with its copy in the pod directory."""
        text = json.dumps({"name": "lan", **document}, indent=1).encode()
        config = parse_network_config(text, file_name, "/etc/rkt/net.d")
        return PlannedNetwork(config=config, args=args, interface="eth0")

    def stub(self, **actions: object) -> PlannedNetwork:
        """Return a network of one recording plugin in rkt's directory, which does what `actions` say."""
        install_plugin(self.plugins, "stub")
        return self.network({"type": "stub", "record": str(self.record), **actions})

    def chain(self, *plugins: dict[str, Any], version: str = "1.0.0", **fields: object) -> PlannedNetwork:
        """Return a network with a list of recording plugins; their types are `stub0` and so on."""
        for index, plugin in enumerate(plugins):
            install_plugin(self.plugins, f"stub{index}")
            plugin.update({"type": f"stub{index}", "record": str(self.record)})
        document = {"cniVersion": version, "plugins": list(plugins), **fields}
        return self.network(document, file_name="10-lan.conflist")

    def request(self, args: str = "", namespace: str = "/run/netns/cni-x") -> Request:
        """Return the parameters of a request."""
        return Request(container_id=ID, namespace=namespace, interface="eth0", args=args)

    def attach(self, network: PlannedNetwork, **options: Any) -> Result:
        """Attach to a network."""
        return attach(network, self.request(), self.search, **options)

    def refusal(self, network: PlannedNetwork, **options: Any) -> str:
        """Return the message with which attaching fails."""
        with pytest.raises(NetworkError) as caught:
            self.attach(network, **options)
        message = str(caught.value)
        assert "\n" not in message
        return message

    def commands(self) -> list[str]:
        """Return the commands that plugins were run with and which they were, `ADD stub` and so on."""
        return [
            f"{call['environment']['CNI_COMMAND']} {os.path.basename(call['argv'][-1])}" for call in calls(self.record)
        ]

    def inputs(self) -> list[dict[str, Any]]:
        """Return what the plugins read, without the settings of the stub itself."""
        return [
            {key: value for key, value in json.loads(call["stdin"]).items() if key not in ("record", "ADD", "DEL")}
            for call in calls(self.record)
        ]

    def kept(self) -> list[str]:
        """Return the files in the pod directory."""
        return sorted(str(path.relative_to(self.pod)) for path in self.pod.rglob("*") if path.is_file())


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A pod directory and a place for plugins, of this test alone."""
    world = World(tmp_path)
    monkeypatch.chdir(world.pod)
    return world


# What a plugin is given.


def test_a_plain_configuration_is_handled_as_in_rkt(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin reads the file as it is, in the environment of the caller with rkt's variables on top."""
    monkeypatch.setenv("INHERITED", "yes")
    monkeypatch.setenv("CNI_ARGS", "of the caller")
    network = world.stub(ADD={"print": OLD_RESULT})
    request = world.request("IP=10.9.0.2;K=V")
    assert attach(network, request, world.search) == Result(
        addresses=(Address(address=parse_interface("10.9.0.2/24"), gateway=parse_address("10.9.0.1")),),
        dns=Dns(nameservers=("10.9.0.1",)),
    )
    detach(network, request, world.search)
    added, deleted = calls(world.record)
    for call, command in ((added, "ADD"), (deleted, "DEL")):
        assert call["stdin"].encode() == network.config.text
        assert call["environment"] == {
            **os.environ,
            "CNI_VERSION": "0.1.0",
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": ID,
            "CNI_NETNS": "/run/netns/cni-x",
            "CNI_ARGS": "IP=10.9.0.2;K=V",
            "CNI_IFNAME": "eth0",
            "CNI_PATH": f"{world.plugins}:/usr/lib/rkt/plugins/net:stage1/rootfs/usr/lib/rkt/plugins/net",
        }
        assert call["cwd"] == str(world.pod)
        assert call["argv"][-1] == f"{world.plugins}/stub"


def test_a_plugin_is_a_process_of_its_own(world: World) -> None:
    """It is in the caller's network and the leader of its session, and has three descriptors and the umask 022."""
    own = os.umask(0o077)
    leaked = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    try:
        world.attach(world.stub(ADD={"print": OLD_RESULT}))
    finally:
        os.umask(own)
        os.close(leaked)
    [call] = calls(world.record)
    assert call["network"] == os.readlink("/proc/self/ns/net")
    assert call["session"] == call["pid"]
    assert call["descriptors"] == ["0", "1", "2", "3"]  # the last is the look at them
    assert call["stderr"] == os.readlink("/proc/self/fd/2")
    assert call["umask"] == 0o022


def test_a_plugin_has_the_signals_of_a_fresh_program(world: World) -> None:
    """A plugin does not inherit signals that the caller ignores or blocks; Python's own SIGPIPE among them."""
    world.plugins.mkdir(parents=True)
    plugin = world.plugins / "shell"
    plugin.write_text(f"#!/bin/sh\ngrep ^SigIgn /proc/self/status >{world.local}/ignored\necho '{{}}'\n")
    plugin.chmod(0o755)
    handler = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        world.attach(world.network({"type": "shell"}))
        world.attach(world.stub(ADD={"print": OLD_RESULT}))
    finally:
        signal.signal(signal.SIGUSR1, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    # Each of the two interpreters changes what the other one leaves as it is.
    assert int((world.local / "ignored").read_text().split()[1], 16) == 0
    assert calls(world.record)[0]["blocked"] == []


def test_a_plugin_need_not_read(world: World) -> None:
    """A request that nobody reads, larger than any pipe, is no error."""
    world.plugins.mkdir(parents=True)
    (world.plugins / "shell").write_text("#!/bin/sh\nexec 0<&-\necho '{}'\n")
    (world.plugins / "shell").chmod(0o755)
    assert world.attach(world.network({"type": "shell", "padding": "x" * 500_000})) == Result()


def test_the_plugins_of_a_list(world: World) -> None:
    """Each gets its part with the network's name and version and what the one before it came to, as it came."""
    network = world.chain(
        {"ADD": {"print": NEW_RESULT}, "capabilities": {"portMappings": True}, "Name": "x", "cniVersion": "y", "a": 1},
        {"ADD": {"print": {**NEW_RESULT, "ips": []}}},
    )
    assert world.attach(network).addresses == ()
    detach(network, world.request(), world.search)
    first = {"type": "stub0", "a": 1, "cniVersion": "1.0.0", "name": "lan"}
    second = {"type": "stub1", "cniVersion": "1.0.0", "name": "lan"}
    last_result = {**NEW_RESULT, "ips": []}
    assert world.commands() == ["ADD stub0", "ADD stub1", "DEL stub1", "DEL stub0"]
    assert world.inputs() == [
        first,
        {**second, "prevResult": NEW_RESULT},
        {**second, "prevResult": last_result},
        {**first, "prevResult": last_result},
    ]
    assert all("CNI_VERSION" not in call["environment"] for call in calls(world.record))


def test_no_result_is_passed_to_an_old_delete(world: World) -> None:
    """Before 0.4.0 a plugin is deleted without the result."""
    network = world.chain({"ADD": {"print": {"cniVersion": "0.3.1"}}}, version="0.3.1")
    world.attach(network)
    detach(network, world.request(), world.search)
    assert "prevResult" not in world.inputs()[1]


def test_a_result_of_another_version_is_converted(world: World) -> None:
    """A plugin that answers in a version of its own does not bother the next, which gets that of the list."""
    network = world.chain({"ADD": {"print": {"cniVersion": "0.2.0", **OLD_RESULT}}}, {"ADD": {"print": NEW_RESULT}})
    world.attach(network)
    assert world.inputs()[1]["prevResult"] == {
        "cniVersion": "1.0.0",
        "ips": [{"address": "10.9.0.2/24", "gateway": "10.9.0.1"}],
        "dns": {"nameservers": ["10.9.0.1"]},
    }


# Which plugin it is.


def test_where_plugins_are_found(world: World) -> None:
    """rkt's directories come first, and only a program from elsewhere may delegate to those elsewhere."""
    network = world.stub(ADD={"print": OLD_RESULT})
    (world.plugins / "stub").rename(world.pod / "stub")
    with pytest.raises(NetworkError, match='^Could not find plugin "stub"$'):
        plugin_path(network, world.search)
    install_plugin(world.system, "stub")
    assert plugin_path(network, world.search) == f"{world.system}/stub"
    world.attach(network)
    assert calls(world.record)[0]["environment"]["CNI_PATH"].split(":") == [
        *world.search.directories,
        str(world.system),
    ]
    built_in = world.pod / "stage1/rootfs/usr/lib/rkt/plugins/net"
    install_plugin(built_in, "stub")
    assert plugin_path(network, world.search) == "stage1/rootfs/usr/lib/rkt/plugins/net/stub"
    (world.plugins / "stub").mkdir()
    assert plugin_path(network, world.search) == "stage1/rootfs/usr/lib/rkt/plugins/net/stub"


def test_a_relative_path_is_one_from_the_pod_directory(world: World) -> None:
    """The plugins of the image are executed by the path that `net-info.json` has."""
    network = world.stub(ADD={"print": OLD_RESULT})
    (world.plugins / "stub").unlink()
    install_plugin(world.pod / "stage1/rootfs/usr/lib/rkt/plugins/net", "stub")
    world.attach(network)
    assert calls(world.record)[0]["argv"][-1] == "stage1/rootfs/usr/lib/rkt/plugins/net/stub"


def test_nothing_is_run_when_a_plugin_of_the_list_is_missing(world: World) -> None:
    """All plugins are looked for first."""
    network = world.chain({"ADD": {"print": NEW_RESULT}}, {})
    (world.plugins / "stub1").unlink()
    assert world.refusal(network) == 'Could not find plugin "stub1"'
    assert world.commands() == [] and world.kept() == []


def test_who_added_also_deletes(world: World) -> None:
    """A plugin that is installed later does not clean up after another one."""
    network = world.stub(ADD={"print": OLD_RESULT})
    (world.plugins / "stub").unlink()
    install_plugin(world.system, "stub")
    world.attach(network)
    install_plugin(world.plugins, "stub")
    detach(network, world.request(), world.search)
    assert [call["argv"][-1] for call in calls(world.record)] == [f"{world.system}/stub"] * 2


# What is kept.


def test_the_result_is_kept_until_the_network_is_left(world: World) -> None:
    """The last result is beside the copy of the configuration, with its version, until DEL succeeds."""
    network = world.stub(ADD={"print": OLD_RESULT})
    world.attach(network)
    assert world.kept() == ["net/10-lan.conf.plugins", "net/10-lan.conf.result"]
    kept = json.loads((world.pod / "net/10-lan.conf.result").read_text())
    assert kept == {"cniVersion": "0.1.0", **OLD_RESULT}
    detach(network, world.request(), world.search)
    assert world.kept() == []


def test_a_failed_delete_keeps_the_result(world: World) -> None:
    """A second try has the same to go by."""
    network = world.chain({"ADD": {"print": NEW_RESULT}, "DEL": {"exit": 1}}, {"ADD": {"print": NEW_RESULT}})
    world.attach(network)
    for _ in range(2):
        with pytest.raises(NetworkError, match='^plugin "stub0" exited with code 1$'):
            detach(network, world.request(), world.search)
    assert [command for command in world.commands() if command.startswith("DEL")] == ["DEL stub1", "DEL stub0"] * 2
    assert all(config["prevResult"] == NEW_RESULT for config in world.inputs()[2:])


def test_every_plugin_of_a_list_is_asked_to_delete(world: World) -> None:
    """One that fails or is gone does not keep those before it from it, and all problems are told."""
    network = world.chain(*({"ADD": {"print": NEW_RESULT}, "DEL": {"exit": code}} for code in (0, 3, 0)))
    world.attach(network)
    (world.plugins / "stub2").unlink()
    with pytest.raises(NetworkError) as caught:
        detach(network, world.request(), world.search)
    assert str(caught.value) == (
        f'plugin "stub2" cannot be executed: {world.plugins}/stub2: no such file or directory; '
        'plugin "stub1" exited with code 3'
    )
    assert world.commands()[3:] == ["DEL stub1", "DEL stub0"]


@pytest.mark.parametrize("damage", ["missing", "broken", "wrong"])
def test_deleting_without_what_was_kept(world: World, damage: str) -> None:
    """Without result and choice, after a kill or a full disk, the plugins are found anew and asked all the same."""
    network = world.chain({"ADD": {"print": NEW_RESULT}}, {"ADD": {"print": NEW_RESULT}})
    world.attach(network)
    for name in world.kept():
        (world.pod / name).write_text({"missing": "", "broken": "{", "wrong": "7"}[damage])
        if damage == "missing":
            (world.pod / name).unlink()
    detach(network, world.request(namespace=""), world.search)
    assert world.commands()[2:] == ["DEL stub1", "DEL stub0"]
    assert all("prevResult" not in config for config in world.inputs()[2:])
    assert calls(world.record)[2]["environment"]["CNI_NETNS"] == ""
    assert world.kept() == []


def test_deleting_twice(world: World) -> None:
    """A network that was left, or never joined, can be left again."""
    network = world.stub()
    detach(network, world.request(), world.search)
    detach(network, world.request(), world.search)
    assert world.commands() == ["DEL stub", "DEL stub"]


# What fails.


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ({"exit": 1, "print": {"code": 7, "msg": "no", "details": "not now"}}, "no; not now"),
        ({"exit": 1, "print": {"code": 7, "msg": "two\nlines\x1b", "details": ""}}, "two lines\\x1b"),
        ({"exit": 3}, 'plugin "stub" exited with code 3'),
        ({"exit": 3, "print": "\n  panic:\tat \x07\nmore"}, 'plugin "stub" exited with code 3: panic: at \\x07'),
        ({"exit": 3, "print": {"msg": ""}}, 'plugin "stub" exited with code 3: {"msg": ""}'),
        ({"signal": 9, "print": OLD_RESULT}, 'plugin "stub" was killed by signal 9'),
        ({}, 'plugin "stub" printed no result'),
        ({"print": "I am fine\n"}, 'plugin "stub" printed no result: I am fine'),
        ({"print": [1]}, 'plugin "stub" printed no result: [1]'),
        ({"print": {"ip4": {"ip": "x"}}}, 'result of plugin "stub": ip4.ip: expected an address in CIDR notation'),
        ({"print": {"cniVersion": "8.0.0"}}, 'result of plugin "stub": cniVersion: expected "0.1.0" or'),
        ({"flood": True}, 'plugin "stub" printed more than 1048576 bytes'),
    ],
)
def test_what_a_failing_plugin_leads_to(world: World, action: dict[str, Any], expected: str) -> None:
    """The message is the plugin's own, or says how it ended; it is asked to undo what it may have done."""
    message = world.refusal(world.stub(ADD=action))
    assert message.startswith(expected) and message.count(expected) == 1
    assert world.commands() == ["ADD stub", "DEL stub"]
    assert world.kept() == []


def test_a_long_message_is_cut(world: World) -> None:
    """Output of a plugin is shown up to a bound."""
    message = world.refusal(world.stub(ADD={"exit": 1, "print": "x" * 5000}))
    assert message.endswith("xxx...") and len(message) < 1100


def test_a_failure_within_a_list_undoes_all_of_it(world: World) -> None:
    """All plugins delete, in reverse, with the result so far: also the one that failed, and those after it."""
    network = world.chain({"ADD": {"print": NEW_RESULT}}, {"ADD": {"exit": 1, "print": {"msg": "no"}}}, {})
    assert world.refusal(network) == "no"
    assert world.commands() == ["ADD stub0", "ADD stub1", "DEL stub2", "DEL stub1", "DEL stub0"]
    assert all(config["prevResult"] == NEW_RESULT for config in world.inputs()[2:])


def test_what_cannot_be_undone_is_told(world: World) -> None:
    """The failure comes first."""
    message = world.refusal(world.stub(ADD={"exit": 1}, DEL={"exit": 2}))
    assert message == 'plugin "stub" exited with code 1 (and it could not be undone: plugin "stub" exited with code 2)'


@pytest.mark.parametrize(
    ("mode", "text", "reason"),
    [(0o755, "#!/no/such/interpreter\n", "no such file or directory"), (0o644, "", "permission denied")],
)
def test_a_plugin_that_cannot_be_executed(world: World, mode: int, text: str, reason: str) -> None:
    """The path is named, and why."""
    world.plugins.mkdir(parents=True)
    (world.plugins / "stub").write_text(text)
    (world.plugins / "stub").chmod(mode)
    message = world.refusal(world.network({"type": "stub"}))
    assert message.startswith(f'plugin "stub" cannot be executed: {world.plugins}/stub: {reason}')


def test_a_plugin_that_says_the_same_about_deleting(world: World) -> None:
    """One that cannot work at all is not quoted twice."""
    action = {"exit": 1, "print": {"msg": "incompatible"}}
    assert world.refusal(world.stub(ADD=action, DEL=action)) == "incompatible"


def test_a_result_that_cannot_be_kept(world: World) -> None:
    """Without a place for the result the network is left again."""
    network = world.stub(ADD={"print": OLD_RESULT})
    (world.pod / "net/10-lan.conf.result").mkdir(parents=True)
    (world.pod / "net/10-lan.conf.result/x").touch()
    assert world.refusal(network).startswith("failed to write net/10-lan.conf.result: ")
    assert world.commands() == ["ADD stub", "DEL stub"]


# What takes too long.


def pid_in(path: Path) -> int:
    """Return the pid in a file."""
    return int(path.read_text())


def test_a_plugin_that_hangs(world: World) -> None:
    """After its time it is killed, with what it started, and asked to undo."""
    network = world.stub(ADD={"child": True, "hang": True})
    assert world.refusal(network, timeout_seconds=1.5) == 'plugin "stub" did not finish within 1.5 seconds'
    assert not is_alive(pid_in(world.record / "hanging"))
    wait_for(lambda: not is_alive(pid_in(world.record / "child")), "the plugin's child to be killed")
    assert world.commands() == ["ADD stub", "DEL stub"]


def test_a_plugin_that_is_not_wanted_any_more(world: World) -> None:
    """When the caller gives up the plugin is killed with what it started, and what it did is undone."""
    network = world.stub(ADD={"child": True, "hang": True})
    world.record.mkdir()
    with Watch(world.record, MOVED_TO) as cancelled:
        message = world.refusal(network, cancelled=cancelled.fileno())
    assert message == 'plugin "stub" was killed: the pod is not wanted any more'
    assert not is_alive(pid_in(world.record / "hanging"))
    wait_for(lambda: not is_alive(pid_in(world.record / "child")), "the plugin's child to be killed")
    assert world.commands() == ["ADD stub", "DEL stub"]


def test_what_a_plugin_leaves_running(world: World) -> None:
    """A process that a plugin leaves behind may keep its output open: nobody waits for that."""
    result = world.attach(world.stub(ADD={"child": True, "print": OLD_RESULT}))
    child = pid_in(world.record / "child")
    try:
        assert str(result.addresses[0].address) == "10.9.0.2/24"
        assert is_alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_plugin_does_not_outlive_its_caller(world: World) -> None:
    """When the caller is killed the plugin is, too."""
    network = world.stub(ADD={"hang": True})
    caller = os.fork()
    if caller == 0:
        try:
            world.attach(network)
        finally:
            os._exit(1)
    wait_for((world.record / "hanging").exists, "the plugin to hang")
    os.kill(caller, signal.SIGKILL)
    os.waitpid(caller, 0)
    wait_for(lambda: not is_alive(pid_in(world.record / "hanging")), "the plugin to be killed")


def test_descriptors_do_not_leak(world: World) -> None:
    """However plugins end, the caller has the descriptors that it had."""
    before = len(os.listdir("/proc/self/fd"))
    for action in ({"print": OLD_RESULT}, {"exit": 1}, {"flood": True}):
        network = world.stub(ADD=action)
        if action.get("print"):
            world.attach(network)
        else:
            world.refusal(network)
    (world.plugins / "stub").write_text("#!/no/such/interpreter\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        for spare in range(10):
            resource.setrlimit(resource.RLIMIT_NOFILE, (before + spare, hard))
            with pytest.raises((MinitError, OSError)):
                world.attach(network)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(os.listdir("/proc/self/fd")) == before


# CHECK.


def test_checking(world: World) -> None:
    """All plugins get the last result, and the first that complains ends it."""
    network = world.chain({"ADD": {"print": NEW_RESULT}}, {"ADD": {"print": {**NEW_RESULT, "ips": []}}})
    world.attach(network)
    assert check(network, world.request(), world.search)
    assert world.commands()[2:] == ["CHECK stub0", "CHECK stub1"]
    assert [config["prevResult"] for config in world.inputs()[2:]] == [{**NEW_RESULT, "ips": []}] * 2


def test_a_plain_configuration_is_checked_with_its_result(world: World) -> None:
    """rkt has no such request, so what the specification asks for is not in its way."""
    network = world.stub(cniVersion="0.4.0", ADD={"print": {"cniVersion": "0.4.0"}}, CHECK={"exit": 1})
    world.attach(network)
    with pytest.raises(NetworkError, match='^plugin "stub" exited with code 1$'):
        check(network, world.request(), world.search)
    assert world.inputs()[1]["prevResult"] == {"cniVersion": "0.4.0"}


@pytest.mark.parametrize("fields", [{"version": "0.3.1"}, {"disableCheck": True}])
def test_what_is_not_checked(world: World, fields: dict[str, Any]) -> None:
    """Older plugins know nothing of it, and a configuration may forbid it."""
    network = world.chain({"ADD": {"print": {}}}, **fields)
    world.attach(network)
    assert not check(network, world.request(), world.search)
    assert world.commands() == ["ADD stub0"]


def test_checking_without_a_result(world: World) -> None:
    """A network that was not joined is not as it was."""
    with pytest.raises(NetworkError, match='the pod is not attached to network "lan"'):
        check(world.chain({}), world.request(), world.search)
