"""machine.toml and the kernel's command line as values, and what is wrong with them as one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.carried import CarriedCodec
from minit.base.errors import ManifestError
from minit.machine.machine import Machine
from minit.manifest.machineconfig import (
    Clock,
    DeviceRule,
    Disk,
    Filesystem,
    Interface,
    MachineConfig,
    State,
    Swap,
    Trial,
    Update,
    Watchdog,
    parse_machine,
    with_command_line,
)

EVERYTHING = b"""
hostname = "sensor-1"
on_exit = "reboot"
failure_wait_seconds = 3
unmount_seconds = 5
modules = ["virtio_net"]
name_servers = ["192.0.2.53", "2001:db8::53"]
console = true

[sysctls]
"net.ipv4.ip_forward" = 1
"kernel.core_pattern" = "core"

[clock]
servers = ["192.0.2.123", "2001:db8::123", "ntp.test"]
first_step_days = 1000
maximum_step_seconds = 60
wait_seconds = 30

[watchdog]
timeout_seconds = 20

[state]
directory = "/data/minit"
kept_boots = 3
keep_roots = true

[swap]
size_mib = 32

[disk]
modules = ["virtio_blk"]
boot_mib = 64
root_mib = 100
command_line = "console=ttyS0 panic=10"

[update]
model = "sensor"
version = "1.10"
keys = ["update.pub", "next.pub"]
url = "http://[2001:db8::1]:8080/sensor.update"
check_seconds = 60
socket = true
reboot = false

[trial]
healthy_seconds = 20
timeout_seconds = 300

[[device]]
subsystem = "tty"
name = "ttyUSB*"
properties = { PRODUCT = "1a86/*" }
mode = "0660"
gid = 20
link = "modem"

[[filesystem]]
source = "/dev/vda"
target = "/data"
type = "ext4"
grow = true
wait_seconds = 5
required = false

[[interface]]
name = "eth0"
addresses = ["192.0.2.7/24", "2001:db8::7/64"]
gateway = "192.0.2.1"
gateway6 = "fe80::1"

[[interface]]
name = "eth1"
dhcp = true
dhcp6 = true
accept_ra = false
wait_seconds = 20
"""


def test_everything_that_can_be_said() -> None:
    """Each key of machine.toml is read."""
    assert parse_machine(EVERYTHING, "machine.toml") == MachineConfig(
        hostname="sensor-1",
        on_exit="reboot",
        failure_wait_seconds=3,
        unmount_seconds=5,
        modules=("virtio_net",),
        name_servers=("192.0.2.53", "2001:db8::53"),
        sysctls=(("net.ipv4.ip_forward", "1"), ("kernel.core_pattern", "core")),
        clock=Clock(
            servers=("192.0.2.123", "2001:db8::123", "ntp.test"),
            first_step_days=1000,
            maximum_step_seconds=60,
            wait_seconds=30,
        ),
        watchdog=Watchdog(timeout_seconds=20),
        state=State(directory="/data/minit", kept_boots=3, keep_roots=True),
        swap=Swap(size_mib=32),
        disk=Disk(modules=("virtio_blk",), boot_mib=64, root_mib=100, command_line="console=ttyS0 panic=10"),
        update=Update(
            model="sensor",
            version="1.10",
            keys=("update.pub", "next.pub"),
            url="http://[2001:db8::1]:8080/sensor.update",
            check_seconds=60,
            socket=True,
            reboot=False,
        ),
        trial=Trial(healthy_seconds=20, timeout_seconds=300),
        console=True,
        devices=(
            DeviceRule(
                subsystem="tty", name="ttyUSB*", properties=(("PRODUCT", "1a86/*"),), mode=0o660, gid=20, link="modem"
            ),
        ),
        filesystems=(
            Filesystem(source="/dev/vda", target="/data", fstype="ext4", grow=True, wait_seconds=5, required=False),
        ),
        interfaces=(
            Interface(
                name="eth0", addresses=("192.0.2.7/24", "2001:db8::7/64"), gateway="192.0.2.1", gateway6="fe80::1"
            ),
            Interface(name="eth1", dhcp=True, dhcp6=True, accept_ra=False, wait_seconds=20),
        ),
    )


def test_another_program_has_all_that_was_said() -> None:
    """The configuration is in the state with which PID 1 goes on in another program."""
    codec, machine = CarriedCodec(Machine), Machine()
    machine.config = parse_machine(EVERYTHING, "machine.toml")
    assert codec.decode(codec.encode(machine)[0], "state").config == machine.config


def test_nothing_need_be_said() -> None:
    """An empty file is a machine with defaults."""
    assert parse_machine(b"", "machine.toml") == MachineConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[device]]\nsubsystem = "x"\nproperties = { A = 1 }', r"device\[0\]\.properties\.A: expected .*, got 1"),
        ("hostname = 3", "hostname: expected a host name of 1 to 64 bytes, got 3"),
        ('hostnam = "x"', 'hostnam: expected one of .*, got "hostnam"'),
        (
            '[state]\ndirectory = "/data/../x"',
            'state.directory: expected an absolute path without .*, got "/data/../x"',
        ),
        ("[state]\nkept_boots = 3", "state.directory: expected an absolute path .*, got nothing"),
        ('[watchdog]\ndevice = "/dev/a b"', "watchdog.device: expected the absolute path of a device"),
        ('[clock]\nservers = ["ntp test"]', r"clock.servers\[0\]: expected an IP address or the name of a host, got"),
        (
            '[clock]\nservers = ["192.0.2.300"]',
            r"clock.servers\[0\]: expected an IP address or the name of a host, got",
        ),
        ("[clock]\nfirst_step_days = 0", "clock.first_step_days: expected an integer from 1 to 36500, got 0"),
        ("[swap]", "swap.size_mib: expected an integer from 1 to 1048576, got nothing"),
        ("[watchdog]\ntimeout_seconds = 1", "watchdog.timeout_seconds: expected an integer from 2 to 86400, got 1"),
        ('[[filesystem]]\nsource = "/dev/vda"\ntarget = "data"\ntype = "ext4"', r"filesystem\[0\].target: expected an"),
        ('[[interface]]\nname = "e/0"', r"interface\[0\].name: expected the name of a network interface"),
        (
            '[[interface]]\nname = "e"\naddresses = ["192.0.2.7"]',
            r"interface\[0\].addresses\[0\]: expected an IP address with the length",
        ),
        (
            '[[interface]]\nname = "e"\naddresses = ["2001:db8::7/129"]',
            r"interface\[0\].addresses\[0\]: expected an IP address with the length",
        ),
        ('[[interface]]\nname = "e"\ngateway6 = "192.0.2.1"', r"interface\[0\].gateway6: expected an IPv6 address"),
        ('[[interface]]\nname = "e"\ngateway = "fe80::1"', r"interface\[0\].gateway: expected an IPv4 address"),
        ('name_servers = ["2001:db8::x"]', r"name_servers\[0\]: expected an IP address"),
        ('[[interface]]\nname = "e"\ndhcp = true\naddresses = ["192.0.2.7/24"]', "expected either dhcp or addresses"),
        ('[[interface]]\nname = "e"\ndhcp = true\ngateway = "192.0.2.1"', "expected either dhcp or addresses"),
        ('modules = ["../x"]', r"modules\[0\]: expected the name of a kernel module"),
        ('[sysctls]\n"../x" = 1', "expected the name of a sysctl"),
        ('[sysctls]\n"a\\u0000b" = 1', "expected the name of a sysctl"),
        *[
            (f'[[filesystem]]\nsource = "x"\ntarget = "{target}"\ntype = "x"', r"filesystem\[0\].target: expected an")
            for target in ("/", "/../../x", "/data/", "/a//b")
        ],
        (
            '[[filesystem]]\nsource = "x"\ntarget = "/x"\ntype = "xfs"\ngrow = true',
            r"filesystem\[0\].grow: expected true with the type ext4 alone",
        ),
        (
            "[trial]\nhealthy_seconds = 600",
            "trial.timeout_seconds: expected more seconds than healthy_seconds, got 600",
        ),
        ("[disk]\nboot_mib = 35", "disk.boot_mib: expected an integer from 36 to"),
        ('[disk]\ncommand_line = "a\\nb"', "disk.command_line: expected at most 1500 printable"),
        ('[update]\nmodel = "a"\nversion = "x"\nkeys = ["k"]', "update.version: expected a version of numbers"),
        ('[update]\nmodel = "a"\nversion = "1"', "update.keys: expected at least one name of a file, and none twice"),
        ('[update]\nmodel = "a"\nversion = "1"\nkeys = ["../k"]', r"update.keys\[0\]: expected the name of a file"),
        (
            '[update]\nmodel = "a"\nversion = "1"\nkeys = ["k"]\nurl = "https://x/"',
            "update.url: expected a URL of HTTP ",
        ),
        (f"x = {'9' * 5000}", "expected TOML"),
        (f"x = 0x{'f' * 5000}", "expected integers of 64 bits"),
        ("x = 1979-05-27", "expected strings, integers, true and false, got 1979-05-27"),
        ("hostname = [1.5]", "expected strings, integers, true and false, got 1.5"),
        ('[[device]]\nsubsystem = "tty"\nlink = "../x"', r"device\[0\].link: expected a name below /dev"),
        ('[[device]]\nsubsystem = "tty"\nmode = "9"', r"device\[0\].mode: expected permissions in octal"),
        ("= 3", "expected TOML"),
        ("#" * 300_000, "expected at most 262144 bytes, got 300000"),
    ],
)
def test_what_is_wrong_has_a_place(text: str, message: str) -> None:
    """An error names the file, the place in it and what belongs there."""
    with pytest.raises(ManifestError, match=f"^machine.toml: .*{message}"):
        parse_machine(text.encode(), "machine.toml")


def test_the_command_line_comes_last() -> None:
    """The kernel's command line counts more than the file, and unknown words are told."""
    text = "quiet minit.debug minit.console minit.on_exit=stay minit.manifest=/data/pod minit.on_exit=no minit.other\n"
    text = f"minit.root_hash=0 minit.root_blocks=1 {text}"
    config, problems = with_command_line(MachineConfig(on_exit="reboot"), text)
    assert config == MachineConfig(on_exit="stay", debug=True, console=True, manifest="/data/pod")
    assert problems == [f"kernel command line: ignoring {word}" for word in ("minit.on_exit=no", "minit.other")]


def test_a_rescue_stays_with_a_prompt() -> None:
    """It does so beside any other options."""
    config, problems = with_command_line(MachineConfig(), "minit.rescue minit.console=0 minit.on_exit=poweroff")
    assert (config, problems) == (MachineConfig(rescue=True, console=True, on_exit="stay"), [])


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_a_value_or_one_line(data: bytes) -> None:
    """No file makes anything but a configuration or an error of one line."""
    try:
        parse_machine(data, "machine.toml")
    except ManifestError as error:
        assert "\n" not in str(error)
