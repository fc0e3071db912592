"""
The configuration of a machine that minit boots, beside its pod: the file machine.toml and the kernel's command line.

Pure. The file is read when the image is built, so that its author hears of errors, and again when the machine boots.
"""

from __future__ import annotations

from minit.base.errors import ManifestError
from minit.base.value import Value, replace
from minit.manifest.machinefields import (
    MAXIMUM_SECONDS,
    is_interface_name,
    is_ipv6,
    read_address,
    read_address_with_prefix,
    read_any_address,
    read_boolean,
    read_command_line,
    read_hostname,
    read_id,
    read_ipv6_address,
    read_key_name,
    read_link,
    read_mode,
    read_module,
    read_path,
    read_seconds,
    read_server,
    read_sysctl,
    read_table,
    read_toml,
    read_url,
    refuse_others,
)
from minit.manifest.machineupdate import read_model, read_version
from minit.manifest.reader import Node

POWEROFF, REBOOT, HALT, STAY = "poweroff", "reboot", "halt", "stay"
ENDINGS = (POWEROFF, REBOOT, HALT, STAY)
"""The possible actions of a machine when its pod has ended."""

DHCP = "dhcp"
_MAXIMUM_DAYS = 36500
# More than any machine needs: the boot reads the whole file.
_MAXIMUM_BYTES = 1 << 18
_MAXIMUM_BOOTS = 10000
_WORD = "minit."
_SWITCH = ("", "0", "1")
# Fields with several tables in the file, by the name of one table.
_TABLES = {"devices": "device", "filesystems": "filesystem", "interfaces": "interface"}
# Options of the kernel's command line alone.
_OF_THE_KERNEL = ("debug", "manifest", "rescue")
# Options of the kernel's command line for the program that switches to the root on a disk.
_OF_THE_ROOT = ("minit.root_hash", "minit.root_blocks", "minit.watchdog")
# The kernel can enlarge this file system while mounted.
_GROWING = "ext4"
_MINIMUM_BOOT_MIB = 36
_MAXIMUM_MIB = 1 << 20


class Watchdog(Value):
    """A hardware watchdog: without food from minit for `timeout_seconds` the machine is reset."""

    device: str = "/dev/watchdog"
    timeout_seconds: int = 60


class Filesystem(Value):
    """
    A file system to mount before the apps start, at a path of the machine that volumes can name as their source.

    The machine waits for the device, `wait_seconds` at most. Without a `required` file system the apps do not start.
    With `grow` the file system gets its whole partition; the last partition first gets the rest of the disk.
    """

    source: str
    target: str
    fstype: str
    options: str = ""
    read_only: bool = False
    grow: bool = False
    wait_seconds: int = 10
    required: bool = True


class State(Value):
    """
    The directory of files that outlive a boot: files of the last `kept_boots` boots, the present boot included.

    With `keep_roots` the directory also has the files that apps write into their own roots.
    """

    directory: str
    kept_boots: int = 10
    keep_roots: bool = False


class Swap(Value):
    """Swap that is kept compressed in memory: `size_mib` at most, before compression."""

    size_mib: int


class Trial(Value):
    """
    The trial of a version that the firmware boots once, from the other slot of the disk.

    The version is kept when all apps have been healthy for `healthy_seconds`. After `timeout_seconds` without success
    the machine starts again, with the version before.
    """

    healthy_seconds: int = 60
    timeout_seconds: int = 600


class DeviceRule(Value):
    """
    A rule for devices of a `subsystem` whose `name` matches a pattern, both in the words of sysfs.

    `properties`, each with a pattern, belong to the device or to a parent: a serial line, say, matches by the PRODUCT
    of its USB adapter. Nodes get `mode`, `uid` and `gid`, and the last node a second name below /dev, `link`. The apps
    wait for a device, `wait_seconds` at most; 0 is no wait. Without a `required` device the apps do not start.
    """

    subsystem: str
    name: str = "*"
    properties: tuple[tuple[str, str], ...] = ()
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    link: str | None = None
    wait_seconds: int = 0
    required: bool = False


class Interface(Value):
    """
    A network interface: addresses of both kinds (`192.0.2.7/24`, `2001:db8::7/64`), or `dhcp` for IPv4 addresses of a
    server. `gateway` is for IPv4, `gateway6` for IPv6.

    With `accept_ra` the interface obeys the advertisements of routers, and asks a server of DHCP for IPv6 if they say
    so; None leaves advertisements to the kernel's own settings. With `dhcp6` a server is always asked for an address.
    The apps wait until the interface is up, `wait_seconds` at most; 0 is no wait.
    """

    name: str
    dhcp: bool = False
    dhcp6: bool = False
    accept_ra: bool | None = None
    addresses: tuple[str, ...] = ()
    gateway: str | None = None
    gateway6: str | None = None
    wait_seconds: int = 0


class Disk(Value):
    """
    The disk of the machine that `init build --format disk` makes; on the machine the table has no effect.

    `modules` are drivers of the disk itself, loaded before the root is mounted. Each of two slots has a root of
    `root_mib`, by default twice the size of the first root, and a kernel of `boot_mib`: an update has to fit in there.
    """

    modules: tuple[str, ...] = ()
    boot_mib: int = 48
    root_mib: int | None = None
    command_line: str = "panic=10"


class Update(Value):
    """
    Updates of a machine: of its `model` alone, newer than its `version`, signed by the owner of one of the `keys`.

    A key is the name of a file beside machine.toml. With a `url` the machine looks for an update there every
    `check_seconds`. Apps may bring an update through the `socket`. With `reboot` the machine starts again after an
    update by either way.
    """

    model: str
    version: str
    keys: tuple[str, ...]
    url: str | None = None
    check_seconds: int = 3600
    socket: bool = False
    reboot: bool = True


class Clock(Value):
    """
    The servers of NTP for the clock, by addresses or names; without any the servers that leases name.

    A clock that has lost the time is first set to the image's time, and then to `first_step_days` later at most. After
    that, and any other clock, is moved by no more than `maximum_step_seconds` in all until the next boot. The apps wait
    for the clock, `wait_seconds` at most; 0 is no wait.
    """

    servers: tuple[str, ...] = ()
    first_step_days: int = 3650
    maximum_step_seconds: int = 24 * 3600
    wait_seconds: int = 0


class MachineConfig(Value):
    """
    The contents of machine.toml. The kernel's command line adds `debug`, `rescue` and `manifest`, a path.

    With `console` anybody at the console has the `minit` command there. For a `rescue` no app is started.
    """

    hostname: str = "minit"
    on_exit: str = POWEROFF
    failure_wait_seconds: int = 10
    unmount_seconds: int = 60
    modules: tuple[str, ...] = ()
    sysctls: tuple[tuple[str, str], ...] = ()
    devices: tuple[DeviceRule, ...] = ()
    filesystems: tuple[Filesystem, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    name_servers: tuple[str, ...] = ()
    clock: Clock | None = None
    watchdog: Watchdog | None = None
    state: State | None = None
    swap: Swap | None = None
    disk: Disk = Disk()
    update: Update | None = None
    trial: Trial = Trial()
    console: bool = False
    debug: bool = False
    manifest: str | None = None
    rescue: bool = False


def parse_machine(data: bytes, source: str) -> MachineConfig:
    """Return the configuration in a machine.toml; ManifestError names the place of an error."""
    if len(data) > _MAXIMUM_BYTES:
        raise ManifestError(f"{source}: expected at most {_MAXIMUM_BYTES} bytes, got {len(data)}")
    root = Node(read_toml(data, source), None, source)
    refuse_others(root, [field for field in MachineConfig._fields if field not in _OF_THE_KERNEL], _TABLES)
    return MachineConfig(
        hostname=root["hostname"].optional(read_hostname) or MachineConfig.hostname,
        on_exit=root["on_exit"].optional(lambda node: node.one_of(*ENDINGS)) or MachineConfig.on_exit,
        failure_wait_seconds=read_seconds(root["failure_wait_seconds"], MachineConfig.failure_wait_seconds),
        unmount_seconds=read_seconds(root["unmount_seconds"], MachineConfig.unmount_seconds),
        modules=root["modules"].each(read_module),
        sysctls=tuple((name, read_sysctl(name, node)) for name, node in read_table(root["sysctls"])),
        devices=root["device"].each(_device),
        filesystems=root["filesystem"].each(_filesystem),
        interfaces=root["interface"].each_named("interface", _interface),
        name_servers=root["name_servers"].each(read_any_address),
        clock=root["clock"].optional(_clock),
        watchdog=root["watchdog"].optional(_watchdog),
        state=root["state"].optional(_state),
        swap=root["swap"].optional(_swap),
        disk=root["disk"].optional(_disk) or MachineConfig.disk,
        update=root["update"].optional(_update),
        trial=root["trial"].optional(_trial) or MachineConfig.trial,
        console=read_boolean(root["console"], MachineConfig.console),
    )


def with_command_line(config: MachineConfig, text: str) -> tuple[MachineConfig, list[str]]:
    """Return the configuration with the changes of the kernel's command line, and lines about unknown words."""
    problems = []
    for word in text.split():
        name, _, value = word.partition("=")
        if not name.startswith(_WORD) or name in _OF_THE_ROOT:
            continue
        if name == "minit.on_exit" and value in ENDINGS:
            config = replace(config, on_exit=value)
        elif name == "minit.debug" and value in _SWITCH:
            config = replace(config, debug=value != "0")
        elif name == "minit.rescue" and value in _SWITCH:
            config = replace(config, rescue=value != "0")
        elif name == "minit.console" and value in _SWITCH:
            config = replace(config, console=value != "0")
        elif name == "minit.manifest" and value.startswith("/"):
            config = replace(config, manifest=value)
        else:
            problems.append(f"kernel command line: ignoring {word}")
    if config.rescue:
        config = replace(config, console=True, on_exit=STAY)
    return config, problems


def _device(node: Node) -> DeviceRule:
    refuse_others(node, DeviceRule._fields)
    return DeviceRule(
        subsystem=node["subsystem"].non_empty(),
        name=node["name"].optional(Node.non_empty) or DeviceRule.name,
        properties=tuple((name, pattern.non_empty()) for name, pattern in read_table(node["properties"])),
        mode=node["mode"].optional(read_mode),
        uid=node["uid"].optional(read_id),
        gid=node["gid"].optional(read_id),
        link=node["link"].optional(read_link),
        wait_seconds=read_seconds(node["wait_seconds"], DeviceRule.wait_seconds),
        required=read_boolean(node["required"], DeviceRule.required),
    )


def _filesystem(node: Node) -> Filesystem:
    refuse_others(node, Filesystem._fields, {"fstype": "type"})
    grow = read_boolean(node["grow"], Filesystem.grow)
    if grow and node["type"].non_empty() != _GROWING:
        raise node["grow"].error(f"true with the type {_GROWING} alone")
    return Filesystem(
        source=node["source"].non_empty(),
        target=read_path(node["target"]),
        fstype=node["type"].non_empty(),
        options=node["options"].optional(Node.string) or "",
        read_only=read_boolean(node["read_only"], Filesystem.read_only),
        grow=grow,
        wait_seconds=read_seconds(node["wait_seconds"], Filesystem.wait_seconds),
        required=read_boolean(node["required"], Filesystem.required),
    )


def _interface(node: Node) -> Interface:
    refuse_others(node, Interface._fields)
    dhcp, addresses = read_boolean(node["dhcp"], Interface.dhcp), node["addresses"].each(read_address_with_prefix)
    gateway = node["gateway"].optional(read_address)
    if dhcp and (gateway or not all(map(is_ipv6, addresses))):
        raise node.error("either dhcp or addresses and a gateway", "both")
    return Interface(
        name=node["name"].matching(is_interface_name, "the name of a network interface"),
        dhcp=dhcp,
        dhcp6=read_boolean(node["dhcp6"], Interface.dhcp6),
        accept_ra=node["accept_ra"].optional(Node.boolean),
        addresses=addresses,
        gateway=gateway,
        gateway6=node["gateway6"].optional(read_ipv6_address),
        wait_seconds=read_seconds(node["wait_seconds"], Interface.wait_seconds),
    )


def _clock(node: Node) -> Clock:
    refuse_others(node, Clock._fields)
    first, step = node["first_step_days"], node["maximum_step_seconds"]
    return Clock(
        servers=node["servers"].each(read_server),
        first_step_days=first.integer(1, _MAXIMUM_DAYS) if first.given else Clock.first_step_days,
        maximum_step_seconds=step.integer(1, _MAXIMUM_DAYS * 24 * 3600) if step.given else Clock.maximum_step_seconds,
        wait_seconds=read_seconds(node["wait_seconds"], Clock.wait_seconds),
    )


def _watchdog(node: Node) -> Watchdog:
    refuse_others(node, Watchdog._fields)
    timeout = node["timeout_seconds"]
    return Watchdog(
        device=node["device"].optional(_watchdog_device) or Watchdog.device,
        timeout_seconds=timeout.integer(2, MAXIMUM_SECONDS) if timeout.given else Watchdog.timeout_seconds,
    )


def _watchdog_device(node: Node) -> str:
    # The value becomes a word of the kernel's command line.
    return node.matching(
        lambda text: text.startswith("/") and text.isascii() and text.isprintable() and " " not in text,
        "the absolute path of a device, in ASCII without spaces (/dev/watchdog)",
    )


def _state(node: Node) -> State:
    refuse_others(node, State._fields)
    kept_boots = node["kept_boots"]
    return State(
        directory=read_path(node["directory"]),
        kept_boots=kept_boots.integer(1, _MAXIMUM_BOOTS) if kept_boots.given else State.kept_boots,
        keep_roots=read_boolean(node["keep_roots"], State.keep_roots),
    )


def _swap(node: Node) -> Swap:
    refuse_others(node, Swap._fields)
    return Swap(size_mib=node["size_mib"].integer(1, _MAXIMUM_MIB))


def _disk(node: Node) -> Disk:
    refuse_others(node, Disk._fields)
    boot_mib, root_mib = node["boot_mib"], node["root_mib"]
    return Disk(
        modules=node["modules"].each(read_module),
        # FAT32 is too large for less.
        boot_mib=boot_mib.integer(_MINIMUM_BOOT_MIB, _MAXIMUM_MIB) if boot_mib.given else Disk.boot_mib,
        root_mib=root_mib.integer(1, _MAXIMUM_MIB) if root_mib.given else Disk.root_mib,
        command_line=node["command_line"].optional(read_command_line) or Disk.command_line,
    )


def _update(node: Node) -> Update:
    refuse_others(node, Update._fields)
    keys, check_seconds = node["keys"].each(read_key_name), node["check_seconds"]
    if not keys or len(set(keys)) != len(keys):
        raise node["keys"].error("at least one name of a file, and none twice")
    return Update(
        model=read_model(node["model"]),
        version=read_version(node["version"]),
        keys=keys,
        url=node["url"].optional(read_url),
        check_seconds=check_seconds.integer(1, MAXIMUM_SECONDS) if check_seconds.given else Update.check_seconds,
        socket=read_boolean(node["socket"], Update.socket),
        reboot=read_boolean(node["reboot"], Update.reboot),
    )


def _trial(node: Node) -> Trial:
    refuse_others(node, Trial._fields)
    trial = Trial(
        healthy_seconds=read_seconds(node["healthy_seconds"], Trial.healthy_seconds),
        timeout_seconds=read_seconds(node["timeout_seconds"], Trial.timeout_seconds),
    )
    if trial.timeout_seconds <= trial.healthy_seconds:
        raise node["timeout_seconds"].error("more seconds than healthy_seconds", str(trial.timeout_seconds))
    return trial
