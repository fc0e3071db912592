"""
Mount operations as values: what will be made inside a root, in order, before anything is.

Targets are absolute paths inside the root that is being built; sources of binds are paths in the stage1 root.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from minit.base.value import Value


class MakeDirectory(Value):
    """A directory that is made if nothing is there; an existing one keeps its mode."""

    target: str
    mode: int = 0o755

    def describe(self) -> str:
        """Return the operation as a line for --debug."""
        return f"directory {self.target} {self.mode:o}"


class MakeFile(Value):
    """An empty file, for a mount."""

    target: str
    mode: int = 0o644

    def describe(self) -> str:
        """Return the operation as a line for --debug."""
        return f"file {self.target} {self.mode:o}"


class MakeNode(Value):
    """A device, a character device if it is no block device."""

    target: str
    major: int
    minor: int
    mode: int = 0o666
    is_block: bool = False
    uid: int = 0
    gid: int = 0

    def describe(self) -> str:
        """Return the operation as a line for --debug."""
        return f"device {self.target} {'b' if self.is_block else 'c'} {self.major}:{self.minor} {self.mode:o}"


class MakeSymlink(Value):
    """A symbolic link in a place nobody else has written to."""

    target: str
    text: str

    def describe(self) -> str:
        """Return the operation as a line for --debug."""
        return f"link {self.target} -> {self.text}"


class MountFilesystem(Value):
    """A new filesystem; `options` are strings, or names alone for flags."""

    fstype: str
    target: str
    options: tuple[tuple[str, str | None], ...] = ()
    nosuid: bool = True
    nodev: bool = True
    noexec: bool = True
    read_only: bool = False

    def describe(self) -> str:
        """Return the operation as a line for --debug."""
        flags = [name for name in ("nosuid", "nodev", "noexec", "read_only") if getattr(self, name)]
        words = [key if value is None else f"{key}={value}" for key, value in self.options]
        return f"mount {self.fstype} on {self.target} ({','.join(flags + words)})"


class BindTree(Value):
    """
    The mount at `source`, in the stage1 root, shown at `target` as well; `recursive` with all mounts below.

    With `writable` the new mount can be written even if the other cannot, with `read_only` nothing can be written.
    """

    source: str
    target: str
    recursive: bool = False
    writable: bool = False
    read_only: bool = False

    def describe(self) -> str:
        """Return the operation as a line for --debug."""
        attribute = ", writable" if self.writable else ", read-only" if self.read_only else ""
        return f"{'rbind' if self.recursive else 'bind'} {self.source} on {self.target}{attribute}"


class MadeFilesystem(Value):
    """A filesystem that the launcher makes, as it takes more than root of a user namespace may do."""

    filesystem: MountFilesystem

    @property
    def target(self) -> str:
        """The path where it is attached."""
        return self.filesystem.target

    def describe(self) -> str:
        """Return the operation as a line for --debug."""
        return f"{self.filesystem.describe()}, made on the host"


MountOp = MakeDirectory | MakeFile | MakeNode | MakeSymlink | MountFilesystem | BindTree | MadeFilesystem

# In the stage1 root: what hides paths in the apps' roots, and the filesystem that has it.
COVERS = "/run"
EMPTY_DIRECTORY = "/run/inaccessible/directory"
EMPTY_FILE = "/run/inaccessible/file"
CONSOLE = "/dev/console"
TTY_GID = 5  # everywhere, whatever an image says
DEV = "/dev"
PROC = MountFilesystem(fstype="proc", target="/proc")
SYS = "/sys"
# appc spec, OS-SPEC "Device nodes".
DEVICES = (
    MakeNode(target="/dev/null", major=1, minor=3),
    MakeNode(target="/dev/zero", major=1, minor=5),
    MakeNode(target="/dev/full", major=1, minor=7),
    MakeNode(target="/dev/random", major=1, minor=8),
    MakeNode(target="/dev/urandom", major=1, minor=9),
    MakeNode(target="/dev/tty", major=5, minor=0),
    MakeDirectory(target="/dev/net"),
    MakeNode(target="/dev/net/tun", major=10, minor=200),
)
# PID 1 puts the pod's pty there.
_CONSOLE = (MakeFile(target=CONSOLE, mode=0o600), BindTree(source=CONSOLE, target=CONSOLE))
_LINKS = (
    MakeSymlink(target="/dev/ptmx", text="pts/ptmx"),
    MakeSymlink(target="/dev/fd", text="/proc/self/fd"),
    MakeSymlink(target="/dev/stdin", text="/proc/self/fd/0"),
    MakeSymlink(target="/dev/stdout", text="/proc/self/fd/1"),
    MakeSymlink(target="/dev/stderr", text="/proc/self/fd/2"),
)
# Not in app_mounts: an app that has a volume at or below its /sys does without (stage1 contract 9.2).
SYSFS = BindTree(source=SYS, target=SYS)
# With the control groups, where there is nothing but the unified hierarchy.
SYSFS_AND_CGROUPS = BindTree(source=SYS, target=SYS, recursive=True)
# mode=0755: without it the root of a tmpfs is world-writable.
DEV_FILESYSTEM = MountFilesystem(fstype="tmpfs", target=DEV, options=(("mode", "0755"), ("size", "64m")), nodev=False)
QUEUES = "/dev/mqueue"


def pod_mounts(
    *,
    writable: bool = False,
    private_users: bool = False,
    own_network: bool = True,
    has_queues: bool = True,
    shm_bytes: int | None = None,
    shown_devices: Collection[str] | None = None,
    has_tty_group: bool = True,
) -> tuple[MountOp, ...]:
    """
    Return the mounts in the stage1 root, for PID 1 and as the source of the apps' mounts.

    `writable` leaves /sys to users with the right. Root of a user namespace (`private_users`) may make no devices, and
    may mount sysfs only if the network namespace is made with the user namespace (`own_network`): the launcher provides
    both. `has_queues` is for mq_overview(7), `shm_bytes` the size of the shared memory, None for the kernel's.
    `shown_devices` are nodes of the host that a caller shows who may make none, None for a caller who makes nodes; such
    a caller shows the host's /sys in a network namespace that is not the caller's own. `has_tty_group` tells whether
    the group of terminals is there.
    """
    # The group of all terminals that are made there.
    terminals = (("gid", str(TTY_GID)),) if has_tty_group else ()
    size = () if shm_bytes is None else (("size", str(shm_bytes)),)
    return (
        PROC,
        _sysfs(writable, private_users, own_network, shown_devices is not None),
        *_dev(private_users, shown_devices),
        MakeDirectory(target="/dev/pts"),
        MakeDirectory(target="/dev/shm"),
        *_LINKS,
        MountFilesystem(
            fstype="devpts",
            target="/dev/pts",
            # ptmxmode opens the instance's own ptmx to every app user.
            options=(("newinstance", None), ("ptmxmode", "0666"), ("mode", "0620"), *terminals),
            nodev=False,
        ),
        MountFilesystem(fstype="tmpfs", target="/dev/shm", options=(("mode", "1777"), *size), noexec=False),
        *((MakeDirectory(target=QUEUES), MountFilesystem(fstype="mqueue", target=QUEUES)) if has_queues else ()),
        MountFilesystem(fstype="tmpfs", target=COVERS, options=(("mode", "0755"), ("size", "64k"))),
        MakeDirectory(target="/run/inaccessible"),
        MakeDirectory(target=EMPTY_DIRECTORY, mode=0),
        MakeFile(target=EMPTY_FILE, mode=0),
    )


def _sysfs(writable: bool, private_users: bool, own_network: bool, is_shown: bool) -> MountOp:
    sysfs = MountFilesystem(fstype="sysfs", target=SYS, read_only=not writable)
    if own_network:
        return sysfs
    if is_shown:
        return BindTree(source=SYS, target=SYS, recursive=True, read_only=True)
    return MadeFilesystem(filesystem=sysfs) if private_users else sysfs


def _dev(private_users: bool, shown: Collection[str] | None) -> tuple[MountOp, ...]:
    if private_users and shown is None:
        return (MadeFilesystem(filesystem=DEV_FILESYSTEM),)
    return (DEV_FILESYSTEM, *(DEVICES if shown is None else _shown(shown)))


def _shown(nodes: Collection[str]) -> Iterator[MountOp]:
    for operation in DEVICES:
        if not isinstance(operation, MakeNode):
            yield operation
        elif operation.target in nodes:
            yield MakeFile(target=operation.target)
            yield BindTree(source=operation.target, target=operation.target)


def app_mounts(
    *,
    console: bool = False,
    private_users: bool = False,
    has_queues: bool = True,
    shown_devices: Collection[str] | None = None,
) -> tuple[MountOp, ...]:
    """
    Return the mounts in an app's root: an own /dev, the pod's proc, devpts, shared memory and queues.

    `console` is for an app with a stream on the pod's console, the other arguments are those of the pod.

    rkt's stage1 makes the same directories in every image (stage1/prepare-app/prepare-app.c).
    """
    return (
        MakeDirectory(target="/dev"),
        MakeDirectory(target="/proc"),
        MakeDirectory(target="/sys"),
        MakeDirectory(target="/etc"),
        MakeDirectory(target="/run"),
        MakeDirectory(target="/tmp", mode=0o1777),
        BindTree(source="/proc", target="/proc"),
        *_dev(private_users, shown_devices),
        MakeDirectory(target="/dev/pts"),
        MakeDirectory(target="/dev/shm"),
        *_LINKS,
        *(_CONSOLE if console else ()),
        BindTree(source="/dev/pts", target="/dev/pts"),
        BindTree(source="/dev/shm", target="/dev/shm"),
        *((MakeDirectory(target=QUEUES), BindTree(source=QUEUES, target=QUEUES)) if has_queues else ()),
    )
