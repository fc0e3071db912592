"""
The processes that minit forks: the state of each from the first moment on, and the last frame of all forks.

A row tells how a process treats the things of its parent. The table of docs/processes.md shows the rows, and a test
compares both. Things that a process opens later, or gives up with its work, are no part of a row.
"""

from __future__ import annotations

import gc
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

from minit.base.errors import EXIT_FAILURE, MinitError, Step, describe
from minit.base.value import Value
from minit.linux import syscalls
from minit.linux.stdio import complain

# The words for a standard stream beside the name of a descriptor.
SAME = "the parent's"
NULL = "/dev/null"
CLOSED = "closed"

# The begin and the end of the arguments, fields 48 and 49 of proc_pid_stat(5): the same in all forks, and some forks
# have no /proc.
_arguments: tuple[int, int] | None = None
_ARG_START = 48 - 3
_STAT_BYTES = 4096

Kept = int | Iterable[int | None] | None
_NOTHING: Mapping[str, Kept] = {}


class Forked(Value):
    """
    A kind of process that minit forks.

    `name` is the name in ps(1), completed by the process if the name ends in a hyphen; None for the parent's name.
    `words` replace the parent's command line; None stands for the words of the name.

    `keeps` names the kept descriptors of the parent beside 0 to 2, None for all. `streams` are the new 0 to 2: SAME,
    NULL, CLOSED, or a kept descriptor. The process is not dumpable, or like its parent, prctl(2). `death_signal` is
    sent to the process if the parent ends, 0 for none. With `unblocks` no signal is blocked.
    """

    who: str
    name: str | None = None
    words: str | None = None
    keeps: tuple[str, ...] | None = ()
    streams: tuple[str, str, str] = (SAME, SAME, SAME)
    has_session: bool = False
    is_dumpable: bool = True
    death_signal: int = 0
    unblocks: bool = False

    def descriptors(self) -> set[str]:
        """Return the names of all descriptors that the process gets."""
        return {*(self.keeps or ()), *self.streams} - {SAME, NULL, CLOSED}


NETWORK_HELPER = Forked(
    who="network helper",
    name="minit-network",
    keeps=("socket", "lock", "image"),
    has_session=True,
)
USER_NAMESPACE_HOLDER = Forked(who="holder of a user namespace", keeps=("pipe",), streams=(CLOSED, CLOSED, CLOSED))
STARTER = Forked(who="starter of a process that is no child of the command", keeps=None)
# The keeper outlives the terminal of the first command.
NAMESPACE_KEEPER = Forked(
    who="keeper of a user's namespace",
    keeps=("pipe", "report"),
    streams=(NULL, NULL, NULL),
    has_session=True,
    unblocks=True,
)
# Of a user without root, for all pods.
UPLINK = Forked(
    who="uplink of a user's pods",
    name="minit-uplink",
    keeps=("fifo", "state"),
    streams=(NULL, "log", "log"),
    has_session=True,
    unblocks=True,
)
UPLINK_PROGRAM = Forked(who="program of the uplink, before its exec", keeps=("ready",), death_signal=signal.SIGKILL)
PORT_FORWARDER = Forked(
    who="forwarder of ports",
    name="minit-ports",
    keeps=("socket", "image", "listening"),
    has_session=True,
    is_dumpable=False,
    death_signal=signal.SIGKILL,
    unblocks=True,
)
# Signals of the terminal reach the launcher. With a user namespace of the pod's PID 1 becomes dumpable again.
PID_1 = Forked(
    who="PID 1",
    name="minit",
    words="minit: supervisor",
    keeps=(
        *("launcher", "lock", "image", "stage1 root", "volumes", "other mounts", "hierarchies", "control groups"),
        *("sockets", "logs of kubernetes", "of the machine"),
    ),
    has_session=True,
    is_dumpable=False,
    death_signal=signal.SIGTERM,
)
# Before another version of minit takes the place of a program.
PROGRAM_TRIAL = Forked(
    who="trial of another version",
    name="minit-trial",
    keeps=None,
    is_dumpable=False,
    death_signal=signal.SIGKILL,
)
SPAWNER = Forked(
    who="spawner",
    name="minit-spawner",
    keeps=("socket",),
    # PID 1 and its children have no business with keys of the caller.
    streams=(NULL, SAME, SAME),
    is_dumpable=False,
)
SIDECAR = Forked(who="sidecar", name="iottymux-", keeps=("log directories", "null", "link"))
# Dumpable, as PID 1 until the change of the root: root of the host owns /proc files of a process that is not dumpable.
APP = Forked(
    who="app, before its exec",
    keeps=(
        *("report", "streams", "terminals", "mount namespace", "control groups", "root", "volumes", "/dev"),
        *("notification", "sockets"),
    ),
    has_session=True,
)
# All signals are blocked, so only the kill by PID 1 ends the process.
APP_INIT = Forked(
    who="first process of an app's PID namespace",
    name="init-",
    streams=(NULL, NULL, NULL),
    has_session=True,
    is_dumpable=False,
)
# No app can have replaced the pod's own /dev/null.
HANDLER = Forked(
    who="event handler, before its exec",
    keeps=("mount namespace", "control groups"),
    streams=(NULL, "stdout", "stderr"),
    has_session=True,
)
CLOSER = Forked(who="closer of an app's descriptors", keeps=("pipe", "descriptors"), streams=(CLOSED, CLOSED, CLOSED))
# The death signal of helpers is a second line of defence: a stopped helper does not see the end of its socket.
DEVICE_HELPER = Forked(
    who="device helper",
    name="minit-devices",
    keeps=("socket", "image"),
    has_session=True,
    is_dumpable=False,
    death_signal=signal.SIGKILL,
)
MOUNT_EXCHANGE = Forked(who="exchange of a device in an app", keeps=None, death_signal=signal.SIGKILL)
HEALTH_HELPER = Forked(
    who="health helper",
    name="minit-health",
    keeps=("socket", "image"),
    has_session=True,
    is_dumpable=False,
    death_signal=signal.SIGKILL,
    unblocks=True,
)
HEALTH_CHECK = Forked(who="check of an app's health", streams=(NULL, "output", "output"), death_signal=signal.SIGKILL)
# After a kill of the parent the caller treats the pod as unused: the kernel kills the collector, too.
COLLECTOR = Forked(
    who="collector of a pod with networks", keeps=None, streams=(NULL, NULL, SAME), death_signal=signal.SIGKILL
)
ENTERING = Forked(
    who="process that enters a pod",
    keeps=("link", "pidfd of PID 1", "namespaces", "control groups", "terminal", "guard"),
)
# By /dev/tty a command reaches the terminal of its session, which must not be the caller's terminal.
ENTERED = Forked(who="command that has entered", keeps=("link",), has_session=True, death_signal=signal.SIGKILL)
# The kernel makes a PID namespace only in the namespace of the maker.
COMMAND_INIT_MAKER = Forked(
    who="maker of a command's PID namespace", keeps=("guard", "report"), streams=(NULL, NULL, NULL), is_dumpable=False
)
# The kernel kills the command, and all that it has left, with the process.
COMMAND_INIT = Forked(
    who="first process of a command's PID namespace",
    name="minit-init",
    streams=(NULL, NULL, NULL),
    has_session=True,
    is_dumpable=False,
)
# Signals of a terminal are for the command.
COMMAND_GUARD = Forked(
    who="guard of a command with a time limit",
    name="minit-guard",
    keeps=("pipe", "control group"),
    streams=(CLOSED, CLOSED, CLOSED),
    has_session=True,
    is_dumpable=False,
)
# A kill of the group then ends the command with all its children.
PLUGIN = Forked(
    who="plugin of a network",
    keeps=("report",),
    streams=("request", "output", SAME),
    has_session=True,
    death_signal=signal.SIGKILL,
)
# The keeper lives as long as the lease. The caller of a plugin waits for the end of the plugin's streams.
LEASE_KEEPER = Forked(
    who="keeper of a DHCP lease",
    name="minit-dhcp",
    keeps=("ready", "record", "namespace"),
    streams=(NULL, NULL, NULL),
    has_session=True,
    is_dumpable=False,
    unblocks=True,
)
MACHINE_HELPER = Forked(
    who="helper of a machine",
    name="minit-machine",
    keeps=("link", "image", "mount namespace of the machine"),
    is_dumpable=False,
    unblocks=True,
)
# After an end in the middle of an update the slot is empty.
UPDATER = Forked(
    who="updater of a machine",
    name="minit-update",
    keeps=("client",),
    is_dumpable=False,
    death_signal=signal.SIGKILL,
)
# The process waits for servers of DNS, and reads answers.
NAME_LOOKUP = Forked(
    who="lookup of names",
    name="minit-lookup",
    keeps=("pipe",),
    streams=(NULL, NULL, SAME),
    is_dumpable=False,
    death_signal=signal.SIGKILL,
)
CONSOLE_KEEPER = Forked(who="watcher of a console", name="minit-console", keeps=("image",), unblocks=True)
CONSOLE_SESSION = Forked(who="session at a console", streams=("console", "console", "console"), has_session=True)
# Input and output of a command on the terminal are not for processes in the background.
DETACHED = Forked(who="pod in the background", keeps=None, streams=(NULL, "output", "output"), has_session=True)
# Each leads a group of its own, so that a signal for the group of `play`, as Ctrl-C is one, reaches the pod once.
PLAYED_POD = Forked(who="pod of a YAML file", keeps=("ready",))
PLAYED_IN_BACKGROUND = Forked(
    who="pod of a YAML file in the background", streams=(NULL, NULL, "errors"), has_session=True
)
# In the command that becomes the launcher. The remover waits for the end of everything else.
END_REMOVER = Forked(
    who="remover of a pod at its end",
    name="minit-remover",
    keeps=("start", "work"),
    streams=(NULL, NULL, SAME),
    has_session=True,
)
IMAGE_BUILD = Forked(who="pod of an image build", keeps=None, death_signal=signal.SIGTERM)
# Else the locks of other pods would end with the process.
REMOVER = Forked(who="remover of pods", keeps=("report", "pods"), death_signal=signal.SIGKILL)
# With 0 to 2 free, output of the interpreter could end up in a file of the image.
EXTRACTOR = Forked(
    who="extractor of images",
    keeps=("report", "images", "links"),
    streams=(NULL, NULL, NULL),
    death_signal=signal.SIGKILL,
)
LINKER = Forked(
    who="maker of links of a tree",
    keeps=("report", "layers", "links"),
    streams=(NULL, NULL, NULL),
    death_signal=signal.SIGKILL,
)
# The process is a parallel part of its parent, with the same open and locked files.
UNPACKER = Forked(
    who="unpacker of a layer",
    name="minit-layer",
    keeps=None,
    has_session=True,
    death_signal=signal.SIGKILL,
)
# The process follows paths in which an app may have put links: nothing of the caller's is in reach.
APP_MOUNTER = Forked(
    who="maker of an ended app's mounts",
    keeps=("link", "root", "volumes"),
    streams=(NULL, NULL, NULL),
    is_dumpable=False,
    death_signal=signal.SIGKILL,
)
PROMPT_COMMAND = Forked(who="command of a prompt", keeps=None)
# It executes a program of the machine's root.
FILESYSTEM_CHECK = Forked(who="check of a file system", keeps=("report",))
UNMOUNTER = Forked(who="unmounter at the end of a machine", keeps=None)


def fork(
    row: Forked,
    run: Callable[[], int | None],
    kept: Mapping[str, Kept] = _NOTHING,
    *,
    tell: Callable[[BaseException], int | None] | None = None,
    of: str = "",
) -> int:
    """
    Fork a process of the kind `row`, and return its number; the process ends with the code that `run` returns.

    `kept` are the kept descriptors by the names of the row: one, several, or None for an absent one, which means
    /dev/null for a stream. `of` ends the process's name. An unhandled error goes to `tell`, which returns the code, or
    None for EXIT_FAILURE; without `tell` the error goes to standard error. `run` may also raise SystemExit.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _be(row, run, kept, tell, of, parent)
    return pid


def clone(
    row: Forked,
    run: Callable[[], int | None],
    kept: Mapping[str, Kept],
    *,
    flags: int = 0,
    cgroup: int | None = None,
    pids: int | None = None,
    tell: Callable[[BaseException], int | None] | None = None,
    of: str = "",
) -> tuple[int, int]:
    """
    Do as fork(), into new namespaces, into the cgroup v2 directory `cgroup` and the PID namespace `pids`, and return
    number and pidfd. The number is valid in the namespace of the caller. With CLONE_PARENT in the `flags` the process
    has the parent of the caller.
    """
    parent = os.getppid() if flags & syscalls.CLONE_PARENT else os.getpid()
    with _children_in(pids):
        pid, pidfd = syscalls.clone3(flags, cgroup)
        if pid == 0:
            _be(row, run, kept, tell, of, parent)
    return pid, pidfd


def settle(row: Forked, kept: Mapping[str, Kept], parent: int = 0, of: str = "") -> None:
    """Make this process match the row; a death signal is sent at the end of `parent`, which forked this process."""
    # Or the table would not tell the truth.
    assert kept.keys() == row.descriptors(), f"{row.who}: {', '.join(kept)}"
    if row.has_session:
        # First: signals of a terminal reach the parent, which decides, and must not arrive here too.
        os.setsid()
    take_name(row, of)
    if not row.is_dumpable:
        # Before anything is opened.
        syscalls.set_dumpable(False)
    if row.death_signal:
        syscalls.set_parent_death_signal(row.death_signal)
        # A parent that ended before sends none. A parent in another PID namespace has the number 0 here.
        if os.getppid() not in (parent, 0):
            raise SystemExit(EXIT_FAILURE)
    if not {SAME, CLOSED}.issuperset(row.streams):
        _place_streams(row, kept)
    if row.keeps is not None:
        # Else a forgotten file object of the parent would later close its number, of another file by then.
        gc.disable()
        # Close-on-exec does nothing without an exec.
        streams = (number for number, name in enumerate(row.streams) if name != CLOSED)
        syscalls.close_all_but((*streams, *numbers(kept[name] for name in row.keeps)))
    if row.unblocks:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())


def take_name(row: Forked, of: str = "") -> None:
    """Have ps(1) show this process by the name and the words of a row, if it has some."""
    if row.name is not None:
        syscalls.set_process_name(row.name + of)
        show_words(row.words or (row.name + of).replace("-", ": ", 1))


def show_words(words: str) -> None:
    """
    Show these words in place of the command line, which tells of the caller's request, and stays the parent's.

    The words overwrite the arguments in memory, where the kernel reads /proc/PID/cmdline. Longer words are cut.
    """
    global _arguments
    if _arguments is None:
        try:
            fd = os.open("/proc/self/stat", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # there is no /proc
        try:
            fields = os.read(fd, _STAT_BYTES).rpartition(b") ")[2].split()
        finally:
            os.close(fd)
        _arguments = int(fields[_ARG_START]), int(fields[_ARG_START + 1])
    start, end = _arguments
    size = end - start
    try:
        # With a last byte other than NUL the kernel ends the words at the first NUL.
        syscalls.write_memory(start, os.fsencode(words)[: size - 2].ljust(size - 1, b"\0") + b" ")
    except OSError:
        pass  # a kernel without the call, or a filter of system calls around minit: the name is right all the same


@contextmanager
def _children_in(pids: int | None) -> Iterator[None]:
    """Have children of this process born in another PID namespace, None for the own namespace."""
    if pids is None:
        yield
        return
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        syscalls.setns(pids, syscalls.CLONE_NEWPID)
        try:
            yield
        finally:
            syscalls.setns(own, syscalls.CLONE_NEWPID)
    finally:
        os.close(own)


def numbers(kept: Iterable[Kept]) -> list[int]:
    """Return the present descriptors of these."""
    found: list[int] = []
    for fds in kept:
        if isinstance(fds, int):
            found.append(fds)
        elif fds is not None:
            found += (fd for fd in fds if fd is not None)
    return found


def _be(
    row: Forked,
    run: Callable[[], int | None],
    kept: Mapping[str, Kept],
    tell: Callable[[BaseException], int | None] | None,
    of: str,
    parent: int,
) -> NoReturn:
    """Be the forked process: after any exception, nothing returns to the code of the parent."""
    code: object = EXIT_FAILURE
    try:
        with Step(f"become {row.who}"):
            settle(row, kept, parent, of)
        code = run() or 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException as error:
        code = (_tell(row, error) if tell is None else tell(error)) or EXIT_FAILURE
    finally:
        os._exit(code if isinstance(code, int) else EXIT_FAILURE)


def _tell(row: Forked, error: BaseException) -> int:
    if isinstance(error, (MinitError, OSError)):
        complain(f"minit: {row.who}: {describe(error)}")
    elif not isinstance(error, KeyboardInterrupt):
        # A defect of ours: only the traceback says why.
        traceback.print_exception(error)
    return EXIT_FAILURE


def _place_streams(row: Forked, kept: Mapping[str, Kept]) -> None:
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for number, name in enumerate(row.streams):
        if name not in (SAME, CLOSED):
            fd = None if name == NULL else kept[name]
            assert fd is None or isinstance(fd, int)
            os.dup2(null if fd is None else fd, number)
    os.close(null)
