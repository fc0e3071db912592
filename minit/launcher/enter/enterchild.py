"""
From a process of the host to a command in an app, in two forks.

The first process enters everything: the app's control groups, namespaces, identity and limits. The first process is in
the pod's PID namespace only for its children, so nobody in the pod can see a process with descriptors or capabilities
of the host. The second one is born confined. The second one does the rest inside, and executes the command once the
parent of both knows the pid.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import NoReturn

from minit.base.errors import EXIT_FAILURE, LaunchError, Step, describe, step_of
from minit.base.value import Value
from minit.linux import syscalls
from minit.linux.forks import COMMAND_INIT, COMMAND_INIT_MAKER, ENTERED, ENTERING, Kept, clone, fork
from minit.linux.loop import wait_readable
from minit.linux.messages import Socket, receive_message, send_message, socket_pair
from minit.linux.process import admit_limits, join_cgroups, leave_realtime, set_oom_score, take_attributes
from minit.linux.stdio import complain
from minit.manifest.capabilities import capability_mask
from minit.plan.entering import EnterProfile
from minit.plan.life.appenvironment import DEFAULT_PATH
from minit.reaper.diagnose import check_exec, diagnose_exec
from minit.reaper.exit_status import STEP_EXEC
from minit.supervisor.apps.pidgroup import be_init
from minit.supervisor.exec.podconsole import take_console
from minit.supervisor.exec.privileges import (
    Command,
    become_program,
    choose_profile,
    drop_bounding_set,
    give_up_capabilities,
)

# As of shells.
EXIT_CANNOT_EXECUTE = 126
EXIT_NOT_FOUND = 127

GO = b"go"
_GO_BYTES = 16
_FOR_NAMESPACES = capability_mask("CAP_SYS_ADMIN")
# A process of the app can stop the maker.
_MAKER_SECONDS = 10.0


class Entrance(Value):
    """
    The way into a pod, as descriptors, and the command's place inside.

    `supervisor` is a pidfd of PID 1, `namespace` the app's mount namespace, None for PID 1's, `pids` the app's PID
    namespace, None for PID 1's; `others` are the kinds of namespaces to join beside these; `own_users` tells that the
    pod has a user namespace of its own. `groups` are files of control groups to write `0` into. `bounding` is the
    capability mask of PID 1, of which the profile keeps a part. `terminal` is the slave of a pty for standard streams
    that are terminals. `guard` is a socket to the guard of a command with a PID namespace of its own, None for a
    command without.
    """

    supervisor: int
    namespace: int | None
    pids: int | None
    others: int
    own_users: bool
    groups: tuple[int, ...]
    bounding: int
    profile: EnterProfile
    terminal: int | None = None
    terminal_streams: tuple[int, ...] = ()
    guard: int | None = None

    def descriptors(self) -> Mapping[str, Kept]:
        """Return the descriptors for the first process."""
        return {
            "pidfd of PID 1": self.supervisor,
            "namespaces": (self.namespace, self.pids),
            "control groups": self.groups,
            "terminal": self.terminal,
            "guard": self.guard,
        }


def enter(entrance: Entrance, command: Sequence[str], link: Socket) -> int:
    """
    Fork the first one, and return its number.

    By `link` the other end gets the host's pid of the second one, or a line with the reason for none. The second one
    executes nothing before "go": a dead parent leaves nobody behind.
    """
    process = _Command(entrance, command, link)
    return fork(ENTERING, process.enter, {"link": link.fileno(), **entrance.descriptors()}, tell=process.tell)


class _Command:
    """The two processes: an error of the first one is for the parent, an error of the second one for a person."""

    def __init__(self, entrance: Entrance, words: Sequence[str], link: Socket) -> None:
        self._entrance = entrance
        self._words = words
        self._link = link
        self._path = b""

    def enter(self) -> int:
        """Be the first process: enter the app, fork the second one, and tell the number."""
        profile = self._entrance.profile
        self._join_groups(profile)
        choose_profile(profile.confinement)
        self._join_namespaces()
        with Step("open standard streams"):
            for number in self._entrance.terminal_streams:
                assert self._entrance.terminal is not None
                os.dup2(self._entrance.terminal, number)
        with Step("close descriptors"):
            # Before any path of the app is followed: /proc/self/fd leads to the host.
            guard = () if self._entrance.guard is None else (self._entrance.guard,)
            syscalls.close_all_but((0, 1, 2, self._link.fileno(), *guard))
            os.umask(0o022)
        with Step("drop capabilities"):
            # The caller may hold more than PID 1, which gave up the rest for the whole pod.
            drop_bounding_set(self._entrance.bounding)
        if self._entrance.guard is not None:
            with Step("make the PID namespace of the command"):
                _enter_new_pids(Socket(fileno=self._entrance.guard))
        give_up_capabilities(profile.confinement)
        with Step("fork"):
            # While no filter is in the way.
            kept = {"link": self._link.fileno()}
            pid, _ = clone(ENTERED, self._run, kept, flags=syscalls.CLONE_PARENT, tell=self._fail)
            self._link.send(b"%d" % pid)
        return EXIT_FAILURE

    def tell(self, error: BaseException) -> int:
        """Tell the parent the reason for no second process, and return the exit code of the first one."""
        self._link.send(f"{step_of(error)}: {describe(error)}".encode(errors="surrogateescape"))
        return EXIT_FAILURE

    def _run(self) -> NoReturn:
        """Be the second process: go all the way to execve(2)."""
        profile = self._entrance.profile
        become_program(profile.confinement, profile.limits, self._get_ready)

    def _fail(self, error: BaseException) -> int:
        """Write the error to the command's standard error, and return the exit code."""
        step, code = step_of(error), EXIT_FAILURE
        if step == STEP_EXEC:
            step, code = "execute the command", EXIT_CANNOT_EXECUTE
            if isinstance(error, OSError):
                error = _failure(self._path, error)
        if isinstance(error, _NotExecuted):
            code = error.code
            complain(f"Error: {error}")
        else:
            complain(f"enter: {step}: {describe(error)}")
        return code

    def _join_groups(self, profile: EnterProfile) -> None:
        """Be in the app's control groups, with the app's attributes."""
        with Step("join control groups"):
            if profile.attributes is not None:
                leave_realtime()
            # First of all: from here on the process uses the app's share.
            join_cgroups(self._entrance.groups)
        if profile.oom_score_adj is not None:
            with Step("set oom_score_adj"):
                set_oom_score(profile.oom_score_adj)
        if profile.attributes is not None:
            with Step("take the attributes of the app"):
                take_attributes(profile.attributes)
                admit_limits(profile.limits)

    def _join_namespaces(self) -> None:
        entrance = self._entrance
        with Step("join namespaces"):
            kinds = entrance.others
            if entrance.pids is None:
                kinds |= syscalls.CLONE_NEWPID
            else:
                syscalls.setns(entrance.pids, syscalls.CLONE_NEWPID)
            if kinds:
                syscalls.setns(entrance.supervisor, kinds)
        with Step("join mount namespace"):
            namespace = entrance.supervisor if entrance.namespace is None else entrance.namespace
            syscalls.setns(namespace, syscalls.CLONE_NEWNS)
        if entrance.own_users:
            with Step("join user namespace"):
                # Last: the root of the host may join all others, the root of the pod may not.
                syscalls.setns(entrance.supervisor, syscalls.CLONE_NEWUSER)

    def _get_ready(self) -> Command:
        """Return the command for the second process to execute."""
        arguments = [os.fsencode(word) for word in self._words]
        variables = dict(self._entrance.profile.environment)
        with Step("hear of the end of the parent"):
            # The change of ids took the signal away.
            syscalls.set_parent_death_signal(ENTERED.death_signal)
        if self._entrance.terminal_streams:
            with Step("take the terminal"):
                take_console(self._entrance.terminal_streams[0])
        with Step("change to the working directory"):
            try:
                os.chdir(self._entrance.profile.working_directory)
            except OSError:
                if self._entrance.profile.needs_directory:
                    raise
                os.chdir("/")
        with Step("find the command"):
            self._path = _find(arguments[0], variables.get(b"PATH", DEFAULT_PATH.encode()))
        with Step("wait for the parent"):
            if self._link.recv(_GO_BYTES) != GO or self._is_alone():
                raise SystemExit(EXIT_FAILURE)
        with Step("close descriptors"):
            syscalls.close_range(3)
        return self._path, arguments, variables

    def _is_alone(self) -> bool:
        """Tell whether the parent died, maybe after its "go", before the death signal arrived."""
        try:
            return not self._link.recv(_GO_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False


def _enter_new_pids(guard: Socket) -> None:
    """Have children born in a new PID namespace, inside of the one where children are born so far; tell the guard."""
    ours, theirs = socket_pair()
    kept = {"guard": guard.fileno(), "report": theirs.fileno()}
    with guard, ours:
        maker = fork(COMMAND_INIT_MAKER, lambda: _make_init(guard, theirs), kept)
        theirs.close()
        pidfds = receive_message(ours)[1] if wait_readable([ours.fileno()], _MAKER_SECONDS) else []
        os.kill(maker, signal.SIGKILL)
        os.waitpid(maker, 0)
        if not pidfds:
            raise LaunchError("the process that makes it was killed or stopped by another of the app")
        syscalls.setns(pidfds[0], syscalls.CLONE_NEWPID)
        os.close(pidfds[0])


def _make_init(guard: Socket, report: Socket) -> None:
    # Others of the app see this process.
    syscalls.set_capabilities(_FOR_NAMESPACES, _FOR_NAMESPACES, 0)
    _, init = clone(COMMAND_INIT, be_init, {}, flags=syscalls.CLONE_NEWPID)
    try:
        send_message(guard, {}, [init])
        send_message(report, {}, [init])
    except OSError:
        # `enter` has ended meanwhile, and the guard.
        syscalls.pidfd_send_signal(init, signal.SIGKILL)
        raise


class _NotExecuted(Exception):
    """The command cannot be executed; `code` says so as shells do."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code


def _find(command: bytes, search: bytes) -> bytes:
    """Return the path of the command to be executed, a bare name being searched in the list of directories."""
    if b"/" in command:
        candidates = [command]
    else:
        # No name at all would be found: each directory itself.
        candidates = [(directory or b".") + b"/" + command for directory in search.split(b":") if command]
    failure: _NotExecuted | None = None
    for candidate in candidates:
        try:
            # Not by trying: a filter of the user's own may leave no way to report a failure.
            check_exec(os.fsdecode(candidate))
        except OSError as error:
            if failure is None or error.errno != errno.ENOENT:
                failure = _failure(candidate, error)
        else:
            return candidate
    if failure is None or (failure.code == EXIT_NOT_FOUND and b"/" not in command):
        raise _NotExecuted(f'Unable to find "{os.fsdecode(command)}" in the PATH of the app', EXIT_NOT_FOUND)
    raise failure


def _failure(path: bytes, error: OSError) -> _NotExecuted:
    number = errno.ENOENT if error.errno is None else error.errno
    name = os.fsdecode(path)
    reason = diagnose_exec(name if name.startswith("/") else f"{os.getcwd()}/{name}", number)
    return _NotExecuted(reason, EXIT_NOT_FOUND if number == errno.ENOENT else EXIT_CANNOT_EXECUTE)
