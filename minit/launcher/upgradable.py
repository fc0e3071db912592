"""
Processes of the host that go on in the program of another version of minit, when PID 1 has: the launcher and helpers.

Each executes the program in place of its own, execve(2), and is the same process: parent, children, sockets and locks
stay. State, trial and way back are those of PID 1, minit/linux/ownprogram.py.
"""

from __future__ import annotations

import gc
import os
import stat
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from minit.base.carried import Carried, CarriedCodec
from minit.base.errors import EXIT_FAILURE, LaunchError, MinitError, describe
from minit.launcher.stop import read_pid
from minit.linux import syscalls
from minit.linux.forks import show_words
from minit.linux.messages import memory_file, read_memory_file
from minit.linux.ownprogram import (
    Program,
    answer_trial,
    close_on_exec,
    execute,
    forget_way_back,
    go_back,
    has_way_back,
    program_in,
    try_program,
)
from minit.linux.process import forget_imports
from minit.linux.stdio import complain, complain_at_once


class Upgradable(Carried):
    """
    What another program of a process goes on with, beside the fields of a subclass.

    `program` is that of this process, None if it cannot be executed, and `offer` the program of another version while
    the process tries that. `words` are the command line to show, `death_signal` is sent at the end of the parent.
    """

    program: Program | None
    offer: Program | None
    words: str
    death_signal: int

    # Not carried: the process in a message and in ps(1), and the Python texts, which other versions of minit execute.
    who = ""
    name = ""
    resume = ""
    prove = ""
    is_dumpable = False

    def __init__(self, program: Program | None) -> None:
        self.program = program
        self.offer = None
        self.words = ""
        self.death_signal = 0

    def leave(self) -> None:
        """Note in the fields what is elsewhere, for another program."""

    def attach(self) -> None:
        """Make what is not carried."""

    def go_on_in(self, image: int, codec: CarriedCodec) -> None:
        """Execute the program in a mount of an image, which is closed; a failure is one line, and changes nothing."""
        try:
            if self.program is None:
                raise LaunchError("the present program cannot be executed")
            self.offer = program_in(image)
            _require_own(self.offer, read_pid())
            self._execute(self.program, self.offer, codec)
        except (MinitError, OSError) as error:
            self.refuse(describe(error))
        finally:
            os.close(image)

    def _execute(self, program: Program, offer: Program, codec: CarriedCodec) -> None:
        self.words, self.death_signal = _own_words(), syscalls.parent_death_signal()
        self.leave()
        state, descriptors = codec.encode(self)
        memory = memory_file("state", state)
        kept = {*descriptors, memory}
        try:
            try_program(offer, self.prove, memory, kept, _hide_nothing)
            # The last argument makes room for the words.
            way_back = [*program.way_back(self.resume, memory), self.words]
            execute(offer, offer.command(self.resume, memory, way_back), kept)
        finally:
            os.close(memory)

    def refuse(self, reason: str) -> None:
        """Go on in the present program, and say why."""
        offer, self.offer = self.offer, None
        if offer is not None:
            offer.close()
        complain_at_once(f"stage1: {self.who} goes on in the old version of minit: {reason}")

    def settle(self, memory: int) -> None:
        """Be the process for good, with nothing left of the program before, nor of the state in a file."""
        if has_way_back():
            forget_way_back()
            old, self.program, self.offer = self.program, self.offer, None
            assert old is not None
            old.close()
        else:
            # The way back has changed the group, for a process whose memory is to be hidden.
            group = os.getresgid()[0]
            os.setresgid(-1, group, group)
            syscalls.set_parent_death_signal(self.death_signal)
            self.refuse("the new version has failed")
        syscalls.set_dumpable(self.is_dumpable)
        os.close(memory)
        close_on_exec()
        # Not before: the words replace the arguments, which lead back.
        show_words(self.words)


def resume(codec: CarriedCodec, run: Callable[[Any], int | None]) -> NoReturn:
    """
    Be an Upgradable in a program that the process has executed, with the code that `run` returns.

    The first argument is the descriptor of the state.
    """
    code = EXIT_FAILURE
    try:
        try:
            process = _take_over(codec, int(sys.argv[1]))
        except BaseException:
            if has_way_back():
                go_back()
            raise
        code = run(process) or 0
    except (MinitError, OSError) as error:
        complain(f"stage1: {describe(error)}")
    except BaseException as error:
        traceback.print_exception(error)
    finally:
        os._exit(code)


def prove(codec: CarriedCodec) -> NoReturn:
    """Show whether this program can go on with the state of an Upgradable, in a child of the process."""
    answer_trial(lambda memory: _decode(codec, memory))


def _decode(codec: CarriedCodec, memory: int) -> Upgradable:
    process = codec.decode(read_memory_file(memory), "state of the process")
    assert isinstance(process, Upgradable)
    return process


def _take_over(codec: CarriedCodec, memory: int) -> Upgradable:
    forget_imports()
    gc.disable()
    process = _decode(codec, memory)
    syscalls.set_process_name(process.name)
    process.attach()
    process.settle(memory)
    return process


def _require_own(program: Program, pod: int) -> None:
    """Refuse a program of which root of the user namespace of `pod`, a PID 1, could have chosen a part."""
    status = os.fstat(program.file)
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise LaunchError("the program is not the own user's")
    # Such a root could have mounted other libraries and modules in the image, and could do so after a look at them.
    if program.image is not None and not os.path.samestat(
        os.stat(f"/proc/{pod}/ns/user"), os.stat("/proc/self/ns/user")
    ):
        raise LaunchError("with private users only a dumped program is taken from PID 1")


def _hide_nothing() -> None:
    """Leave the memory to root of the host: an app in the PID namespace of the host has fewer capabilities."""


def _own_words() -> str:
    """Return the command line of this process as ps(1) shows it."""
    with open("/proc/self/cmdline", "rb") as file:
        return os.fsdecode(file.read().rstrip(b"\0").replace(b"\0", b" "))
