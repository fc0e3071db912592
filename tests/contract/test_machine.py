"""Machines that minit boots, as namespaces: the same first program with the same duties, in well under a second."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from minit.linux.loop import wait_readable
from minit.podfiles import paths
from tests.support.firstprogram import TIMEOUT_SECONDS, NamespaceMachine
from tests.support.loopdevices import LoopDevice
from tests.support.pods import MakePod, shell
from tests.support.processes import children_of, copy_descriptor, descriptors_of, named, status_of
from tests.support.waiting import wait_for

# Asks as a process in the PID namespace of the first process and in the control group of another one.
_ASK = """
import os, socket, sys
from minit.linux import syscalls
first, like, request = sys.argv[1:]
group = [line for line in open(f"/proc/{like}/cgroup") if line.startswith("0::")][0].split(":", 2)[2].strip()
top = [line.split()[4] for line in open("/proc/self/mountinfo") if " - cgroup2 " in line][0]
open(f"{top}{group}/cgroup.procs", "w").write("0")
root = os.open(f"/proc/{first}/root/rkt/minit", os.O_PATH)
syscalls.setns(os.open(f"/proc/{first}/ns/pid", os.O_RDONLY), syscalls.CLONE_NEWPID)
if os.fork() == 0:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.connect(f"/proc/self/fd/{root}/control")
    try:
        client.send(request.encode())
        print(client.recv(65536).decode(), flush=True)
    except OSError:
        pass
    os._exit(0)
os.wait()
"""

WATCHDOG = '[watchdog]\ndevice = "/run-watchdog"\ntimeout_seconds = 2\n'

Boot = Callable[..., NamespaceMachine]


@pytest.fixture
def boot(make_pod: MakePod, tmp_path: Path) -> Iterator[Boot]:
    """A function that boots a machine with these apps; it ends with the test."""
    with ExitStack() as stack:

        def start(apps: dict[str, Any], config: str = "", command_line: str = "", **pod: Any) -> NamespaceMachine:
            prepared = make_pod(apps, overlay=False, **pod)
            return stack.enter_context(NamespaceMachine(tmp_path, prepared, config, command_line))

        yield start


def ask(machine: NamespaceMachine, like: int, request: dict[str, str]) -> Any:
    """Return the answer to a request of a process in the control group of another one, None without an answer."""
    words = [sys.executable, "-c", _ASK, str(machine.first_process), str(like), json.dumps(request)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return json.loads(done.stdout) if done.stdout.strip() else None


def has_resumed(machine: NamespaceMachine, count: int) -> bool:
    """Tell whether the first process has gone on in so many programs."""
    return (machine.pod / paths.POD_EVENTS).read_text().count('"supervisor.resumed"') == count


@contextmanager
def meals_of(machine: NamespaceMachine) -> Iterator[Callable[[], None]]:
    """A function that waits until the watchdog has been fed three times more."""
    food = os.open(machine.root / "run-watchdog", os.O_RDONLY | os.O_NONBLOCK)

    def wait_for_meals() -> None:
        with suppress(BlockingIOError):
            while os.read(food, 64):
                pass
        for _ in range(3):
            assert wait_readable([food], TIMEOUT_SECONDS), "the watchdog is not fed"
            assert os.read(food, 1) == b"\0"

    yield wait_for_meals
    os.close(food)


@contextmanager
def link_of(helper: int) -> Iterator[socket.socket]:
    """The helper's end of the socket to the first process."""
    found: list[socket.socket] = []

    def find() -> bool:
        for other in found:
            other.close()
        numbers = [fd for fd, target in descriptors_of(helper).items() if target.startswith("socket:")]
        found[:] = [socket.socket(fileno=copy_descriptor(helper, fd)) for fd in numbers]
        # At first it has its parent's as well.
        return [each.type for each in found].count(socket.SOCK_SEQPACKET) == 1

    wait_for(find, "the helper's socket")
    with ExitStack() as stack:
        [link] = [each for each in map(stack.enter_context, found) if each.type == socket.SOCK_SEQPACKET]
        yield link


def files_of(machine: NamespaceMachine) -> dict[int, str]:
    """Return the files and namespaces that the first process has open, by number, but for logs and files in memory."""
    found = descriptors_of(machine.first_process).items()
    opened_anew = ("/memfd:", "/rkt/minit/")
    return {fd: name for fd, name in found if name.startswith(("/", "mnt:")) and not name.startswith(opened_anew)}


def test_apps_run_and_the_machine_goes_off(boot: Boot) -> None:
    """Apps run as in any pod, their output is on the console, their statuses are recorded, and then it is off."""
    machine = boot({"one": shell("echo hello; hostname; exit 3")}, 'hostname = "sensor"\n').wait()
    said = [line.partition(": ")[2] for line in machine.lines if line.startswith("one[")]
    assert said == ["hello", "sensor"]
    assert machine.status("one") == 3
    assert machine.lines[-2:] == ["minit: the pod has ended with 3", "minit: poweroff"]
    assert machine.ending == "off"


@pytest.mark.parametrize(
    ("config", "command_line", "ending"),
    [('on_exit = "reboot"', "", "reboot"), ('on_exit = "reboot"', "quiet minit.on_exit=poweroff", "off")],
)
def test_what_happens_at_the_end(boot: Boot, config: str, command_line: str, ending: str) -> None:
    """machine.toml says what the machine does when its pod has ended, unless the kernel's command line does."""
    assert boot({"one": shell("true")}, config, command_line).wait().ending == ending


@pytest.mark.parametrize(("number", "ending"), [(signal.SIGINT, "reboot"), (signal.SIGTERM, "off")])
def test_a_signal_ends_the_apps_and_the_machine(boot: Boot, number: int, ending: str) -> None:
    """Ctrl-Alt-Del, a SIGINT, reboots when the apps have been stopped in order; SIGTERM does what is configured."""
    app = shell("trap 'echo bye; exit 0' TERM; echo up; sleep 1000 & wait")
    machine = boot({"one": app}, 'on_exit = "poweroff"')
    machine.wait_for_line("up")
    machine.signal(number)
    machine.wait()
    assert [line.partition(": ")[2] for line in machine.lines if line.startswith("one[")] == ["up", "bye"]
    assert machine.ending == ending


def test_an_app_that_signals_the_first_process(boot: Boot) -> None:
    """No signal of an app ends the machine, whatever its user; the first one is one line."""
    machine = boot({"one": shell("for number in 15 2 30 37 10 9; do kill -$number 1; done; echo sent; sleep 1000")})
    machine.wait_for_line("sent")
    assert "running" in machine.run("/bin/minit", "app", "list").stdout
    machine.signal(signal.SIGINT)
    assert machine.wait().ending == "reboot"
    [told] = [line for line in machine.lines if "is ignored" in line]
    assert told.startswith("minit: signal ") and told.endswith(": minit poweroff or reboot end a machine")


def test_output_that_acts_on_a_terminal(boot: Boot) -> None:
    """On the console an app can neither move the cursor nor begin a line that looks like somebody else's."""
    script = r"printf '\033[2Jclear\na\rminit: poweroff\nend\r\n\302\233K\n\303\251\tb'"
    machine = boot({"one": shell(script)}).wait()
    said = [line.partition("]: ")[2] for line in machine.lines if line.startswith("one[")]
    assert said == [r"\x1b[2Jclear", r"a\x0dminit: poweroff", "end", r"\x9bK", "\u00e9\tb"]
    assert [line for line in machine.lines if line.startswith("minit: ")] == machine.lines[-2:]


def test_a_machine_that_stays(boot: Boot) -> None:
    """With on_exit = "stay" the machine is there when its pod has ended, until somebody asks for its end."""
    machine = boot({"one": shell("true")}, 'on_exit = "stay"')
    machine.wait_for_line("the machine stays")
    machine.signal(signal.SIGTERM)
    assert machine.wait().ending == "off"


def test_a_signal_before_the_machine_is_prepared(boot: Boot) -> None:
    """A stop need not wait for the things that apps would wait for; no app starts."""
    machine = boot({"one": shell("true")}, '[[interface]]\nname = "missing"\nwait_seconds = 86400\n', "minit.word")
    machine.wait_for_line("ignoring minit.word")
    machine.signal(signal.SIGINT)
    machine.wait()
    assert machine.lines[1:] == [
        "minit: told to end before the machine is prepared: the pod is not started",
        "minit: reboot",
    ]
    assert (machine.status("one"), machine.ending) == (None, "reboot")


@pytest.mark.parametrize("command_line", ["minit.on_exit=stay", "minit.rescue"])
def test_the_power_button_of_a_machine_that_stays(boot: Boot, command_line: str) -> None:
    """It is heeded though no pod runs, by another helper if one has died meanwhile."""
    machine = boot({"one": shell("true")}, "", command_line)
    machine.wait_for_line("the machine stays")
    first = machine.wait_for_helper()
    os.kill(first, signal.SIGKILL)
    machine.wait_for_line("minit: the machine's helper has ended: another one starts in 1 s")
    helper = machine.wait_for_helper(other_than=first)
    # This machine has no button: what the helper would say of one.
    with link_of(helper) as link:
        link.send(b'{"event":"power button"}')
    assert machine.wait().ending == "off"
    assert machine.lines[-1] == "minit: poweroff"


def test_a_first_process_in_another_program(boot: Boot) -> None:
    """
    The first process has the files of before, feeds the watchdog, hears the helper, refuses another version, and ends
    the machine as somebody wishes, while the apps notice nothing.
    """
    check = {"exec": ["/bin/true"], "interval": "100ms"}
    app = shell(
        "trap 'echo bye; exit 0' TERM; echo up; sleep 1000 & wait",
        annotations=[{"name": "minit/health", "value": json.dumps({"liveness": check})}],
    )
    machine = boot({"one": app}, 'on_exit = "stay"\n' + WATCHDOG)
    machine.wait_for_line("up")
    helper = machine.wait_for_helper()
    before, children = files_of(machine), set(children_of(machine.first_process))
    assert "/run-watchdog" in before.values()
    with meals_of(machine) as wait_for_meals:
        for count in (1, 2):
            assert ask(machine, helper, {"op": "reexecute"}) == {"ok": True}
            wait_for(partial(has_resumed, machine, count), "the new program")
        wait_for_meals()
    assert before.items() <= files_of(machine).items()
    assert children <= set(children_of(machine.first_process))
    assert "slots" in ask(machine, helper, {"op": "upgrade"})["error"]
    os.kill(helper, signal.SIGKILL)
    machine.wait_for_line("minit: the machine's helper has ended: another one starts in 1 s")
    # The next helper is a child of the new program.
    machine.wait_for_helper(other_than=helper)
    assert machine.run("/bin/minit", "reboot").returncode == 0
    machine.wait()
    assert [line.partition(": ")[2] for line in machine.lines if line.startswith("one[")] == ["up", "bye"]
    assert (machine.lines[-1], machine.ending) == ("minit: reboot", "reboot")


def test_errors_of_the_first_process(boot: Boot) -> None:
    """
    After one error the machine goes on, and after three at once the apps are stopped in order, with time and statuses,
    while the watchdog is fed; then the machine starts again, whatever is configured.
    """
    # The app's own signals are no wishes for an end, of which a second would kill.
    stop = "kill 1; sleep 0.2; kill 1; until [ -e /tmp/end ]; do sleep 0.05; done; exit 3"
    app = shell(f"trap '{stop}' TERM; echo up; sleep 1000 & wait")
    machine = boot({"one": app}, 'on_exit = "stay"\nfailure_wait_seconds = 0\n' + WATCHDOG)
    machine.wait_for_line("up")
    with link_of(machine.wait_for_helper()) as link, meals_of(machine) as wait_for_meals:
        # No message of a helper.
        link.send(b"?")
        machine.wait_for_line("PID 1 goes on")
        wait_for_meals()
        for _ in range(6):
            link.send(b"?")
        machine.wait_for_line(": the third within a second: the pod is stopped")
        wait_for_meals()
        (machine.pod / "stage1/rootfs/opt/stage2/one/rootfs/tmp/end").touch()
        machine.wait()
    assert (machine.status("one"), machine.lines[-1], machine.ending) == (3, "minit: reboot", "reboot")
    assert [line for line in machine.lines if "is ignored" in line]


def test_a_broken_configuration(boot: Boot) -> None:
    """An error in machine.toml is one line, and the machine goes on as without it."""
    machine = boot({"one": shell("echo hello")}, 'on_exit = "explode"').wait()
    expected = '/etc/minit/machine.toml: on_exit: expected "poweroff" or "reboot" or "halt" or "stay", got "explode"'
    assert f"minit: {expected}: going on as without it" in machine.lines
    assert (machine.status("one"), machine.ending) == (0, "off")


def test_a_broken_manifest(boot: Boot, make_pod: MakePod) -> None:
    """A pod that cannot be run is said in one line, and the machine ends as it is configured to."""
    config = 'on_exit = "reboot"\nfailure_wait_seconds = 0'
    machine = boot({"one": shell("true")}, config, isolators=[{"name": 3}]).wait()
    assert machine.lines == ["minit: pod: isolators[0].name: expected an ACIdentifier, got 3", "minit: reboot"]
    assert machine.ending == "reboot"


def test_another_manifest_by_the_command_line(boot: Boot) -> None:
    """minit.manifest= names another pod manifest, and what cannot be understood is said and left out."""
    machine = boot({"one": shell("true")}, "failure_wait_seconds = 0", "minit.manifest=/none minit.typo=1").wait()
    assert machine.lines == [
        "minit: kernel command line: ignoring minit.typo=1",
        "minit: /none: no such file or directory",
        "minit: poweroff",
    ]


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ('modules = ["imaginary"]', "module imaginary: not in this image"),
        ('[[interface]]\nname = "eth7"\ndhcp = true\nwait_seconds = 1', "interface eth7: not there after 1 s"),
        ('[watchdog]\ndevice = "/dev/none"', "watchdog /dev/none: no such file or directory"),
    ],
)
def test_what_is_missing(boot: Boot, config: str, line: str) -> None:
    """A thing that the configuration names and the machine lacks is one line, and the app runs without it."""
    machine = boot({"one": shell("echo hello")}, config).wait()
    assert [said for said in machine.lines if said.startswith("minit: ")] == [
        *(f"minit: {line}", "minit: the pod has ended with 0", "minit: poweroff")
    ]
    assert machine.status("one") == 0


def test_an_app_that_crashes_at_once(boot: Boot) -> None:
    """It is what the app has said and how it ended, and then what the configuration says."""
    machine = boot({"one": shell("echo no >&2; kill -SEGV $$")}, 'on_exit = "reboot"').wait()
    assert [line.partition("]: ")[2] for line in machine.lines[:-2]] == ["no"]
    assert machine.lines[-2:] == ["minit: the pod has ended with 139", "minit: reboot"]
    assert (machine.status("one"), machine.ending) == (139, "reboot")


def test_a_console_that_takes_nothing(boot: Boot) -> None:
    """Output that nobody reads, as at the end of a serial line that was told to wait, holds nothing up."""
    machine = boot({"one": shell("echo up; sleep 1000")})
    machine.wait_for_line("up")
    assert machine.process.stdout is not None
    pipe = os.open(f"/proc/self/fd/{machine.process.stdout.fileno()}", os.O_WRONLY | os.O_NONBLOCK)
    with open(pipe, "wb", buffering=0) as console:
        for filling in (b" " * 4096, b" "):
            while console.write(filling) is not None:
                pass
        machine.signal(signal.SIGTERM)
        # Without reading, which would make room.
        assert machine.process.wait(TIMEOUT_SECONDS) == 128 + signal.SIGINT


def test_a_watchdog_is_fed_by_a_supervisor_that_works(boot: Boot) -> None:
    """The watchdog gets its food while PID 1 runs, none when it is stopped, and no farewell at the end."""
    config = 'on_exit = "stay"\n[watchdog]\ndevice = "/run-watchdog"\ntimeout_seconds = 2'
    machine = boot({"one": shell("echo up; sleep 1000")}, config)
    machine.wait_for_line("up")
    food = os.open(machine.root / "run-watchdog", os.O_RDONLY)
    for _ in range(3):
        assert os.read(food, 1) == b"\0"
    machine.signal(signal.SIGSTOP)
    wait_for(lambda: status_of(machine.first_process)["State"].startswith("T"), "PID 1 to be stopped")
    os.set_blocking(food, False)
    with suppress(BlockingIOError):
        while os.read(food, 64):
            pass
    time.sleep(1)  # twice as long as between meals
    with pytest.raises(BlockingIOError):
        os.read(food, 1)
    machine.signal(signal.SIGCONT)
    machine.signal(signal.SIGTERM)
    assert machine.wait().ending == "off"
    assert set(os.read(food, 4096)) == {0}
    os.close(food)


def test_an_app_that_waits_for_the_network(boot: Boot) -> None:
    """An app can wait alone, by another one that ends when there is a network; the others have started before."""
    config = """
        [[interface]]
        name = "late"
        addresses = ["192.0.2.9/24"]
    """
    apps = {
        "online": shell("echo waiting; until ip route | grep -q 192.0.2; do sleep 0.1; done; echo online"),
        "web": shell("echo serving", annotations=[{"name": "minit/after", "value": "online:completed"}]),
        "sensor": shell("echo measuring"),
    }
    machine = boot(apps, config)
    machine.wait_for_line(": waiting")
    machine.wait_for_helper()
    machine.in_network("ip", "link", "add", "late", "type", "veth", "peer", "name", "other")
    machine.wait()
    said = [line.partition("]: ")[2] for line in machine.lines if "]: " in line]
    assert sorted(said) == ["measuring", "online", "serving", "waiting"] and said[-2:] == ["online", "serving"]
    assert [machine.status(app) for app in apps] == [0, 0, 0]


def test_the_helper_dies(boot: Boot) -> None:
    """Another one is started in its place, later each time, and does what the first one would go on with."""
    config = """
        on_exit = "reboot"
        [[interface]]
        name = "late"
        addresses = ["192.0.2.9/24"]
        [[filesystem]]
        source = "none"
        target = "/data"
        type = "tmpfs"
    """
    machine = boot({"one": shell("echo up; sleep 1000")}, config)
    machine.wait_for_line("up")
    helper = machine.wait_for_helper()
    for delay in (1, 2):
        os.kill(helper, signal.SIGKILL)
        machine.wait_for_line(f"minit: the machine's helper has ended: another one starts in {delay} s")
        helper = machine.wait_for_helper(other_than=helper)
    machine.in_network("ip", "link", "add", "late", "type", "veth", "peer", "name", "other")
    wait_for(
        lambda: "192.0.2.9/24" in machine.in_network("ip", "address", "show", "late"), "the address of the interface"
    )
    machine.signal(signal.SIGTERM)
    assert machine.wait().ending == "reboot"
    died = [f"minit: the machine's helper has ended: another one starts in {delay} s" for delay in (1, 2)]
    assert machine.lines[1:] == [*died, "minit: the pod has ended with 0", "minit: reboot"]


@pytest.mark.long
def test_a_helper_that_hangs(boot: Boot) -> None:
    """One that does not answer is killed, and another one goes on with what it did; the apps notice nothing."""
    config = """
        [[interface]]
        name = "late"
        addresses = ["192.0.2.9/24"]
    """
    machine = boot({"one": shell("echo up; sleep 1000")}, config)
    machine.wait_for_line("up")
    helper = machine.wait_for_helper()
    os.kill(helper, signal.SIGSTOP)
    machine.in_network("ip", "link", "add", "late", "type", "veth", "peer", "name", "other")
    machine.wait_for_line("minit: the machine's helper hangs: another one starts in 1 s")
    wait_for(lambda: not named([helper], "minit-machine"), "the end of the one that hangs")
    machine.wait_for_helper(other_than=helper)
    wait_for(
        lambda: "192.0.2.9/24" in machine.in_network("ip", "address", "show", "late"), "the address of the interface"
    )
    machine.signal(signal.SIGTERM)
    machine.wait()
    assert len(machine.lines) == 4 and machine.lines[2:] == ["minit: the pod has ended with 0", "minit: poweroff"]


def test_the_start_has_a_processor_to_itself(boot: Boot) -> None:
    """The helper stands back until the apps have started and has its priority again; so have the kernel's waits."""
    expedited = Path("/sys/kernel/rcu_expedited")
    before = expedited.read_text()
    machine = boot({"one": shell("echo up; sleep 1000")}, "")
    machine.wait_for_line("up")
    assert expedited.read_text() == before
    helper = machine.wait_for_helper()
    wait_for(lambda: os.getpriority(os.PRIO_PROCESS, helper) == 0, "the helper's priority")


@pytest.mark.parametrize(("required", "status"), [("true", None), ("false", 0)])
def test_a_file_system_that_is_missing(boot: Boot, required: str, status: int | None) -> None:
    """Without a required file system no app starts; another one is missed in one line."""
    config = f"""
        failure_wait_seconds = 0
        [[filesystem]]
        source = "LABEL=nowhere"
        target = "/data"
        type = "ext4"
        wait_seconds = 0
        required = {required}
    """
    machine = boot({"one": shell("true")}, config).wait()
    assert "minit: filesystem /data: no block device LABEL=nowhere within 0 s" in machine.lines
    assert machine.status("one") == status


def test_a_file_system_and_a_sysctl(boot: Boot) -> None:
    """Volumes can be on file systems of the configuration, which have the options it gives them."""
    config = """
        [sysctls]
        "net.ipv4.ip_forward" = 1
        "net.ipv4.nothing" = 1
        [[filesystem]]
        source = "none"
        target = "/data"
        type = "tmpfs"
        options = "size=1m,noexec"
    """
    volume = {"name": "data", "kind": "host", "source": "/data"}
    app = shell("cat /proc/sys/net/ipv4/ip_forward; grep ' /data ' /proc/mounts")
    machine = boot({"one": {**app, "mounts": [{"volume": "data", "path": "/data"}]}}, config, volumes=[volume]).wait()
    said = [line.partition(": ")[2] for line in machine.lines if line.startswith("one[")]
    assert said[0] == "1"
    assert said[1].startswith("none /data tmpfs rw,nosuid,nodev,noexec,relatime,size=1024k")
    assert "minit: sysctl net.ipv4.nothing: /proc/sys/net/ipv4/nothing: no such file or directory" in machine.lines


def test_rules_for_devices(boot: Boot) -> None:
    """Nodes get the permissions, the owner and the links that the configuration says, and an app can have them."""
    config = """
        [[device]]
        subsystem = "mem"
        properties = { MAJOR = "1", MINOR = "5" }
        mode = "0640"
        uid = 7
        link = "source/of-nothing"
        wait_seconds = 60
    """
    volume = {"name": "nothing", "kind": "host", "source": "/dev/source/of-nothing"}
    app = shell("head -c 3 /nothing | wc -c; stat -c '%a %u %t:%T' /nothing")
    machine = boot({"one": {**app, "mounts": [{"volume": "nothing", "path": "/nothing"}]}}, config, volumes=[volume])
    machine.wait()
    assert [line.partition(": ")[2] for line in machine.lines if line.startswith("one[")] == ["3", "640 7 1:5"]


# One line for each change of what there is at /v.
_WATCH = """
while :; do
    if [ -b /v ]; then now=there; else now=missing; fi
    if [ $now != "$last" ]; then
        last=$now
        # Once: when it is gone the kernel would make a device for who opens it.
        if [ $now = there ]; then true <> /v && now=$(stat -c %a /v); fi
        echo $now
    fi
    sleep 0.02
done
"""


def test_devices_that_come_and_go(boot: Boot, loop: LoopDevice) -> None:
    """An app with minit/hotplug has a device by its link when there is one, though there was none at the start."""
    config = f"""
        [[device]]
        subsystem = "block"
        name = "{loop.path.name}"
        mode = "0640"
        link = "spare/disk"
    """
    volume = {"name": "v", "kind": "host", "source": "/dev/spare/disk"}
    app = shell(
        _WATCH, mounts=[{"volume": "v", "path": "/v"}], annotations=[{"name": "minit/hotplug", "value": "true"}]
    )
    loop.remove()
    machine = boot({"one": app}, config, volumes=[volume])
    machine.wait_for_line(": missing")
    for is_first in (True, False):
        loop.add()
        if is_first:
            # There is no devtmpfs, where the node would have been there with the event.
            machine.make_node(loop.path)
            loop.announce("change")
        machine.wait_for_line(": 640")
        loop.remove()
        machine.wait_for_line(": missing")
    machine.signal(signal.SIGTERM)
    assert machine.wait().ending == "off"
    shown = [line.partition("]: ")[2] for line in machine.lines]
    # In between the link may still lead to a node of before, which is denied.
    changes = [line for line, _ in itertools.groupby(line for line in shown if line in ("missing", "640"))]
    assert changes == ["missing", "640", "missing", "640", "missing"]


@pytest.mark.parametrize(("required", "status"), [("true", None), ("false", 0)])
def test_a_device_that_does_not_come(boot: Boot, required: str, status: int | None) -> None:
    """Apps start without a device that does not come in time, unless it is required."""
    rule = f'subsystem = "imaginary"\nwait_seconds = 1\nrequired = {required}'
    machine = boot({"one": shell("true")}, f"failure_wait_seconds = 0\n[[device]]\n{rule}").wait()
    assert "minit: device imaginary/*: none within 1 s" in machine.lines
    assert machine.status("one") == status


def test_an_app_that_a_check_ends(boot: Boot) -> None:
    """The health of apps is checked, by commands in them too; one that is ended for it ends the pod and the machine."""
    check = {
        "exec": ["/bin/sh", "-c", "echo out of order; exit 1"],
        "interval": "100ms",
        "timeout": "60s",
        "failures": 1,
    }
    annotation = {"name": "minit/health", "value": json.dumps({"liveness": check})}
    machine = boot({"one": shell("echo up; sleep 1000", annotations=[annotation])}).wait()
    assert machine.status("one") is not None, machine.lines
    record = json.loads((machine.pod / "stage1/rootfs/rkt/minit/state/one.json").read_text())
    assert record["end"] == "liveness check: out of order"
    assert machine.ending == "off"


def test_an_app_that_is_started_again(boot: Boot) -> None:
    """Restart policies hold as in any pod."""
    policy = [{"name": "minit/restart", "value": "on-failure"}, {"name": "minit/restart-delay", "value": "10ms"}]
    script = "echo start; [ -e /tmp/second ] && exit 0; touch /tmp/second; exit 1"
    machine = boot({"one": shell(script, annotations=policy)}).wait()
    assert [line.partition(": ")[2] for line in machine.lines if line.startswith("one[")] == ["start", "start"]
    assert (machine.status("one"), machine.ending) == (0, "off")


def test_who_may_ask(boot: Boot) -> None:
    """On the control socket root's processes are answered that are of no app, and nobody else."""
    machine = boot({"one": shell("echo up; sleep 1000")})
    machine.wait_for_line("up")
    helper = machine.wait_for_helper()
    app = int(machine.lines[-1].partition("[")[2].partition("]")[0])
    [app] = [pid for pid in children_of(machine.first_process) if status_of(pid)["NSpid"].split()[-1] == str(app)]
    for like, answered in ((helper, True), (app, False)):
        assert bool(ask(machine, like, {"op": "state"})) == answered


def test_orphans_are_reaped(boot: Boot) -> None:
    """Processes that an app leaves behind are ended with the machine."""
    machine = boot({"one": shell("(sleep 1000 &) ; echo left")}).wait()
    assert machine.ending == "off"
