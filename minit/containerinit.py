"""
`minit -- COMMAND`: the init of another runtime's container, in the place of tini or dumb-init.

The init runs one command, passes signals on, reaps orphans, and ends with the command's exit code. The command inherits
everything from the caller: ignored and blocked signals, descriptors, environment, directory.

minit.linux.forks does not fork the command: that module imports the system calls, and with a plain interpreter ctypes,
two megabytes of memory that process 1 of a container does without. The command keeps everything of the caller's anyway.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Collection, Iterator, Sequence
from fcntl import ioctl
from termios import TIOCNOTTY, TIOCSCTTY
from typing import NoReturn

from minit.base.errors import EXIT_FAILURE, EXIT_USAGE, describe, reason_of
from minit.base.value import Value
from minit.linux.stdio import complain, open_standard_streams
from minit.reaper.diagnose import diagnose_exec
from minit.reaper.exit_status import from_wait_status

# Signals that a process causes itself: waiting for these would hide a fault of the init.
_FAULTS = (
    *(signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGBUS),
    *(signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS),
)
# The kernel drops these signals for an orphaned process group, such as the group of a new session.
_TERMINAL_STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_LAST_DESCRIPTOR = 2**31 - 1

USAGE = "minit [--group] [--session] [--parent-death=SIGNAL] -- COMMAND [ARG]..."

_EXIT_NOT_EXECUTABLE = 126
_EXIT_NOT_FOUND = 127
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


class InitOptions(Value):
    """
    The options of a run: with `group` signals go to the whole process group, with `session` to a session of its own.

    `parent_death_signal` is passed on, too, when the parent of the init ends.
    """

    group: bool = False
    session: bool = False
    parent_death_signal: int | None = None


def _split_command(words: Sequence[str]) -> tuple[InitOptions, list[str]] | None:
    """
    Return the options before the first `--` and the command behind; None for lines other than `minit -- COMMAND`.

    ValueError has the fault of such a line.
    """
    end = list(words).index("--") if "--" in words else -1
    if end < 0:
        return None
    group = session = False
    death: int | None = None
    options = iter(words[:end])
    for word in options:
        name, given, value = word.partition("=")
        if word == "--group":
            group = True
        elif word == "--session":
            session = True
        elif name == "--parent-death":
            death = _signal_number(value if given else next(options, ""))
        else:
            return None
    if not words[end + 1 :]:
        raise ValueError("a command must follow --")
    return InitOptions(group=group, session=session, parent_death_signal=death), list(words[end + 1 :])


def _signal_number(text: str) -> int:
    name = text.upper().removeprefix("SIG")
    number = getattr(signal, f"SIG{name}", None) if name.isalnum() else None
    if number is None and name.isascii() and name.isdigit():
        number = int(name)
    if number is None or number not in signal.valid_signals():
        raise ValueError(f'--parent-death: expected a signal such as TERM, got "{text}"')
    return int(number)


def main(words: Sequence[str]) -> int | None:
    """Run the command of the line and return the exit code; None for lines other than `minit -- COMMAND`."""
    try:
        chosen = _split_command(words)
    except ValueError as error:
        complain(f"minit: {error} (usage: {USAGE})")
        return EXIT_USAGE
    if chosen is None:
        return None
    open_standard_streams()
    try:
        return run_command(chosen[1], chosen[0])
    except OSError as error:
        complain(f"minit: {describe(error)}")
        return EXIT_FAILURE


def run_command(command: list[str], options: InitOptions) -> int:
    """Run a command to its end and return its exit code, 128+n for death by signal n."""
    waited = signal.valid_signals() - set(_FAULTS)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    # With SIGCHLD ignored the kernel reaps children, and forgets their statuses.
    child_disposition = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _adopt_orphans(options.parent_death_signal)
    terminal = _foreground_terminal()
    if options.session:
        terminal = _leave_terminal(terminal)

    reports, reporter = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if options.session:
                _become_session(terminal)
            else:
                _become_group(terminal)
            signal.signal(signal.SIGCHLD, child_disposition)
            # Python ignores these two signals; the command must not.
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            if options.parent_death_signal == signal.SIGKILL:
                _set_parent_death_signal(signal.SIGKILL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            _execute(command)
        except BaseException as error:  # never back into the code of the parent
            complain(f"minit: {describe(error)}")
        finally:
            os._exit(EXIT_FAILURE)
    os.close(reporter)
    # End of file when the command is executed: from then on its process group can be signalled.
    os.read(reports, 1)
    # Descriptors of the caller are the command's alone: else nobody would see their close. No file system stays busy.
    os.closerange(3, _LAST_DESCRIPTOR)
    os.chdir("/")
    return _Watch(child, options, None if options.session else terminal, waited).run()


class _Watch:
    """The loop of the init over its signals."""

    def __init__(self, child: int, options: InitOptions, terminal: int | None, waited: Collection[int]) -> None:
        self._child = child
        self._target = -child if options.group or options.session else child
        self._session = options.session
        self._terminal = terminal
        self._waited = waited
        self._asked_to_stop = False

    def run(self) -> int:
        """Return the command's exit code when it has ended."""
        while True:
            number = signal.sigwaitinfo(self._waited).si_signo
            if number != signal.SIGCHLD:
                self._forward(number)
                continue
            for pid, status in _dead_or_stopped():
                if pid != self._child:
                    continue
                if os.WIFSTOPPED(status):
                    self._stop()
                    continue
                if self._session:
                    self._signal(signal.SIGTERM)  # to those that it left behind
                self._take_terminal_back()
                return from_wait_status(status).number()

    def _forward(self, number: int) -> None:
        if number in _TERMINAL_STOPS:
            self._asked_to_stop = True
            if self._session:
                number = signal.SIGSTOP
        elif number == signal.SIGCONT:
            self._asked_to_stop = False
        self._signal(number)

    def _signal(self, number: int) -> None:
        try:
            os.kill(self._target, number)
        except ProcessLookupError:
            pass  # it is ending
        except PermissionError as error:
            complain(f"minit: passing on signal {number}: {describe(error)}")

    def _stop(self) -> None:
        """Stop as the command did, so that a shell in front takes its terminal back; until SIGCONT."""
        if os.getpid() == 1 or (self._terminal is None and not self._asked_to_stop):
            return  # whoever stopped the command lets it go on without us, and the kernel stops no process 1
        os.kill(os.getpid(), signal.SIGSTOP)
        # The SIGCONT that ended the stop is forwarded after the terminal.
        if self._terminal is not None and _foreground_terminal() is not None:
            _hand_over(self._terminal, self._child)

    def _take_terminal_back(self) -> None:
        """Leave the terminal to the caller's process group, where a script may go on."""
        if self._terminal is None:
            return
        try:
            if os.tcgetpgrp(self._terminal) == self._child:
                os.tcsetpgrp(self._terminal, os.getpgrp())
        except OSError:
            pass  # hung up


def _dead_or_stopped() -> Iterator[tuple[int, int]]:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def _adopt_orphans(parent_death_signal: int | None) -> None:
    """Become the reaper of orphans, as process 1 is anyway, and ask for the signal at the parent's end, if any."""
    if os.getpid() == 1 and parent_death_signal is None:
        return
    from minit.linux import syscalls  # process 1 needs none of them, and they are two megabytes of its memory

    syscalls.set_child_subreaper()
    if parent_death_signal is not None:
        parent = os.getppid()
        syscalls.set_parent_death_signal(parent_death_signal)
        if os.getppid() != parent:
            os.kill(os.getpid(), parent_death_signal)


def _set_parent_death_signal(number: int) -> None:
    from minit.linux import syscalls  # loaded already

    syscalls.set_parent_death_signal(number)


def _foreground_terminal() -> int | None:
    """Return a standard stream that is the controlling terminal, with this process group in the foreground."""
    for fd in range(3):
        try:
            if os.tcgetpgrp(fd) == os.getpgrp():
                return fd
        except OSError:
            pass  # no terminal, or not ours
    return None


def _hand_over(terminal: int, group: int) -> None:
    """Make a process group the foreground of the terminal, tcsetpgrp(3)."""
    try:
        os.tcsetpgrp(terminal, group)
    except OSError:
        pass  # it was hung up; the command will see


def _become_group(terminal: int | None) -> None:
    """Lead a separate process group, in the foreground of the terminal, if any, setpgid(2)."""
    os.setpgid(0, 0)
    if terminal is not None:
        _hand_over(terminal, os.getpid())


def _leave_terminal(terminal: int | None) -> int | None:
    """Return the terminal if this process led the session and gave the terminal up, for the session of the command."""
    if terminal is None or os.getsid(0) != os.getpid():
        return None  # it belongs to the session of a shell

    pending = signal.sigpending()
    ioctl(terminal, TIOCNOTTY)
    # The kernel signals the foreground about the loss: not the command, which gets the terminal again.
    for number in {signal.SIGHUP, signal.SIGCONT} - pending:
        signal.sigtimedwait((number,), 0)
    return terminal


def _become_session(terminal: int | None) -> None:
    """Lead a separate session, with the given controlling terminal, setsid(2)."""
    os.setsid()
    if terminal is not None:
        ioctl(terminal, TIOCSCTTY, 0)


def _execute(command: list[str]) -> NoReturn:
    """Execute a command as execvp(3) does; end with the exit codes of shells after a failure."""
    name = command[0]
    path = os.environ.get("PATH", _DEFAULT_PATH)
    candidates = [name] if "/" in name else [f"{folder or '.'}/{name}" for folder in path.split(":")]
    failure: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for candidate in candidates:
        try:
            os.execv(candidate, command)
        except (FileNotFoundError, NotADirectoryError) as error:
            if os.path.lexists(candidate):
                failure = error
                break
        except PermissionError as error:
            failure = error
        except OSError as error:
            if error.errno == errno.ENOEXEC:  # a script that names no interpreter
                os.execv("/bin/sh", ["/bin/sh", candidate, *command[1:]])
            failure = error
            break
    complain(f"minit: exec {name}: {_explain(candidate, failure)}")
    os._exit(_EXIT_NOT_FOUND if failure.errno in (errno.ENOENT, errno.ENOTDIR) else _EXIT_NOT_EXECUTABLE)


def _explain(path: str, failure: OSError) -> str:
    """Return the reason in words; an existing file that is not found lacks its interpreter."""
    if isinstance(failure, FileNotFoundError) and os.path.exists(path):
        return diagnose_exec(os.path.abspath(path))
    return reason_of(failure.errno or 0)
