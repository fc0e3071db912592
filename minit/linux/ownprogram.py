"""
The program of a process, executed anew, and another version of the program in its place: execve(2) with a state.

A file in memory has the state, and descriptors cross by number. So that no app traces the process between execve(2) and
the first instruction, the process has another effective group for the moment. Another version first proves in a child
that the program understands the state. Afterwards the program has two seconds, minit/image/dump/crash.c.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NoReturn

from minit.base.carried import Descriptor
from minit.base.errors import LaunchError, MinitError, describe
from minit.base.value import Value
from minit.linux import syscalls
from minit.linux.forks import PROGRAM_TRIAL, clone
from minit.linux.loop import wait_readable
from minit.linux.messages import Socket, encode_message

# What a program on trial writes to the pipe, if the program can go on with the state; else the reason.
_UNDERSTOOD = b"understood"
_TRIAL_SECONDS = 2.0
# An interpreter that is not dumped first reads hundreds of modules.
_PLAIN_TRIAL_SECONDS = 10.0
_END_SECONDS = 1.0
# So long an exec is tried that fails for want of memory, which there may be in a moment.
_PASSING = (errno.ENOMEM, errno.E2BIG, errno.EAGAIN)
_PASSING_SECONDS = 1.0
_PAUSE_SECONDS = 0.05
_MAX_REASON_BYTES = 4000

_NAME = "/usr/lib/minit/bin/minit"
_PREFIX = "usr/lib/minit"
_PLAIN_OPTIONS = ("-I", "-S", "-B", "-X", "utf8")
_BACK = "--back"
_SUID_DUMPABLE = "/proc/sys/fs/suid_dumpable"
_ANYBODY = "1"
_OVERFLOW_GID = 65534


class Program(Value):
    """
    A program: a descriptor of the file, the arguments before `-c`, and the mount with the interpreter's modules.

    `image` is None for a program with everything in it, which needs no mount.
    """

    file: Descriptor
    arguments: tuple[str, ...]
    image: Descriptor | None = None

    def command(self, text: str, memory: int, words: Sequence[str] = ()) -> list[str]:
        """Return the command line for a Python text with a state at a descriptor."""
        return [*self.arguments, "-c", text, str(memory), *words]

    def way_back(self, text: str, memory: int) -> list[str]:
        """Return the words by which the next program finds the way back to this one."""
        return [_BACK, str(self.file), *self.command(text, memory)]

    def descriptors(self) -> list[int]:
        """Return what has to stay open."""
        return [self.file] if self.image is None else [self.file, self.image]

    def close(self) -> None:
        """Let go of the program."""
        for fd in self.descriptors():
            os.close(fd)


def find_program(image: int | None, *, keeps_image: bool = False) -> Program | None:
    """
    Return the program of this process, whose interpreter was started from the mount `image`.

    None if the program cannot be executed once more, as in a test. With `keeps_image` a dumped program has the mount
    as well.
    """
    program, *options = sys.orig_argv or [""]
    try:
        file = os.open("/proc/self/exe", os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    if not options or not options[0].startswith("-"):
        # Dumped. minit.launcher.ownimage finds the mount by the name, so without the mount the name must be another.
        return Program(file=file, arguments=(program if keeps_image else _NAME,), image=image if keeps_image else None)
    if image is None or "-c" not in options:
        os.close(file)
        return None
    return _plain(file, image, program, options[: options.index("-c")])


def program_in(image: int) -> Program:
    """Return the program in a read-only mount of a stage1 image; OSError if there is none."""
    try:
        file = _open_file(image, f"{_PREFIX}/bin/minit")
    except FileNotFoundError:
        file = _open_file(image, f"{_PREFIX}/ld.so")
        modules = os.dup(image)
        return _plain(file, modules, f"/proc/self/fd/{modules}/{_PREFIX}/bin/python3", _PLAIN_OPTIONS)
    return Program(file=file, arguments=(_NAME,))


def offer_image(link: Socket, image: int) -> None:
    """Have the other end of a socket go on in the program of an image, by a mount; OSError if nobody is there."""
    # A process that is stopped must not hold up this one.
    link.sendmsg(*encode_message({"upgrade": True}, [image]), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)


def _open_file(image: int, path: str) -> int:
    # Not a program of the host: whoever offers the mount may have put links into the mount, or other mounts.
    resolve = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_XDEV
    return syscalls.openat2(image, path, os.O_PATH, resolve=resolve)


def _plain(file: int, image: int, program: str, options: Sequence[str]) -> Program:
    libraries = f"{program.rpartition('/bin/')[0]}/lib"
    loader = ("ld.so", "--inhibit-cache", "--library-path", libraries, "--argv0", program, program)
    return Program(file=file, arguments=(*loader, *options), image=image)


def has_way_back() -> bool:
    """Return whether this program is another version, on trial in the place of the old one."""
    return _BACK in sys.argv


def execute(program: Program, command: Sequence[str], kept: Iterable[int]) -> NoReturn:
    """
    Execute a program with the descriptors `kept`; OSError, and no change, for a failure.

    A failure for want of memory is one if it stays for a second.
    """
    for fd in kept:
        try:
            os.set_inheritable(fd, True)
        except OSError as error:
            # Closed just before an error.
            if error.errno != errno.EBADF:
                raise
    until = time.monotonic() + _PASSING_SECONDS
    while True:
        try:
            os.execve(program.file, [*command], os.environ)
        except BaseException as error:
            is_passing = isinstance(error, OSError) and error.errno in _PASSING
            if not is_passing or time.monotonic() >= until:
                close_on_exec()
                raise
        time.sleep(_PAUSE_SECONDS)


def close_on_exec() -> None:
    """Have the next program get no descriptor but 0 to 2."""
    syscalls.close_range(3, flags=syscalls.CLOSE_RANGE_CLOEXEC)


def hide_memory() -> None:
    """
    Have nobody trace this process between execve(2) and the first instruction: a program is dumpable then.

    Not with another effective group than the real one, unless fs.suid_dumpable is 1 (begin_new_exec of the kernel).
    """
    with open(_SUID_DUMPABLE, encoding="ascii") as file:
        if file.read().strip() == _ANYBODY:
            raise LaunchError(f"{_SUID_DUMPABLE} is {_ANYBODY}: apps could look at the memory of the process")
    try:
        os.setresgid(-1, _OVERFLOW_GID, -1)
    except OSError as error:
        # A user with one id has no second group to take, and no app with another user.
        if error.errno != errno.EINVAL:
            raise


def protect_memory(death_signal: int) -> None:
    """Be root's again, and nobody's to trace, with the death signal that the change of ids takes away."""
    os.setresgid(0, 0, 0)
    syscalls.set_dumpable(False)
    syscalls.set_parent_death_signal(death_signal)


def forget_way_back() -> None:
    """Be for good the program of the process."""
    del sys.argv[sys.argv.index(_BACK) :]
    syscalls.forget_way_back()


def go_back() -> NoReturn:
    """Execute the program before this one, with the same state; OSError for a failure."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    file, *command = sys.argv[sys.argv.index(_BACK) + 1 :]
    with suppress(OSError):
        os.setresgid(-1, _OVERFLOW_GID, -1)
    os.execve(int(file), command, os.environ)


def try_program(program: Program, text: str, memory: int, kept: Iterable[int], hide: Callable[[], None]) -> None:
    """
    Have a child execute a program and a Python text with the state at the descriptor `memory`, and see what it answers.

    The text gets the descriptors of the state and of a pipe, and calls `answer_trial` in time; LaunchError for anything
    else but a success. `hide` hides the memory of the child.
    """
    seconds = _TRIAL_SECONDS if program.image is None else _PLAIN_TRIAL_SECONDS
    reader, writer = os.pipe2(os.O_CLOEXEC)

    def run() -> NoReturn:
        hide()
        execute(program, program.command(text, memory, [str(writer)]), [*kept, memory, writer])

    try:
        try:
            pid, pidfd = clone(PROGRAM_TRIAL, run, {}, tell=lambda error: _tell(writer, error))
        finally:
            os.close(writer)
        answer = os.read(reader, _MAX_REASON_BYTES) if wait_readable([reader], seconds) else None
        syscalls.pidfd_send_signal(pidfd, signal.SIGKILL)
        # Only a tracer could put the end off.
        if wait_readable([pidfd], _END_SECONDS):
            os.waitpid(pid, os.WNOHANG)
        os.close(pidfd)
    finally:
        os.close(reader)
    if answer != _UNDERSTOOD:
        reason = f"no answer within {seconds:g} s" if answer is None else answer.decode(errors="replace")
        raise LaunchError(f"the program cannot go on with the state: {reason or 'the program died'}")


def answer_trial(take: Callable[[int], object]) -> NoReturn:
    """
    Be a program on trial: show whether `take` can go on with the state.

    The first argument is the descriptor of the state, the second that of the pipe for the answer.
    """
    memory, writer = map(int, sys.argv[1:])
    try:
        take(memory)
        os.write(writer, _UNDERSTOOD)
    except BaseException as error:
        _tell(writer, error)
    finally:
        os._exit(0)


def _tell(writer: int, error: BaseException) -> None:
    # Others are defects.
    reason = describe(error) if isinstance(error, (MinitError, OSError)) else repr(error)
    os.write(writer, reason.encode())
