"""
PID 1 executes its program anew, execve(2), and goes on: on request, and after an error of its own.

A request can also bring another version of minit, whose program PID 1 executes in place of its own.

Apps, sidecars, helpers and clients notice nothing. The descriptors stay open under their numbers, and a file in memory
has the rest of the state: docs/design.md has the format. What the kernel has told once only, an end or a signal say, is
in the state before PID 1 acts, and leaves the state afterwards.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import minit
from minit.base.carried import Carried, CarriedCodec, Descriptor
from minit.base.errors import EXIT_FAILURE, LaunchError, MinitError, Step, describe
from minit.base.value import Value
from minit.linux.attributes import Attributes
from minit.linux.forks import PID_1, take_name
from minit.linux.messages import Socket, fill_memory_file, memory_file, read_memory_file
from minit.linux.ownprogram import (
    Program,
    close_on_exec,
    execute,
    forget_way_back,
    has_way_back,
    hide_memory,
    protect_memory,
    try_program,
)
from minit.linux.process import forget_imports
from minit.linux.stdio import complain_at_once
from minit.plan.podplan import PodTraits
from minit.podfiles import paths
from minit.podfiles.paths import PodEvent
from minit.reaper.exit_status import STEP_SUPERVISOR, ExitStatus
from minit.reaper.reaper import rescue_ends
from minit.reaper.record import write_file
from minit.supervisor.apps.apprecords import Records
from minit.supervisor.apps.context import Context, OwnLimits
from minit.supervisor.apps.handlers import Handlers
from minit.supervisor.apps.lifecycle import Event
from minit.supervisor.apps.podapp import App
from minit.supervisor.apps.podpolicy import PodPolicy, StartOrder
from minit.supervisor.control.answers import Adding, Removing, Starting, Stopping
from minit.supervisor.control.serve import Client, Clients, Offer, accept, attach_log, serve
from minit.supervisor.exec import privileges
from minit.supervisor.journal import Journal
from minit.supervisor.lastloop import LastLoop, Reserve
from minit.supervisor.launcherlink import LauncherLink, Outside
from minit.supervisor.output.sidecars import Sidecars
from minit.supervisor.podevents import Events
from minit.supervisor.supervisor import WATCHED_SIGNALS, Supervisor

# An error that comes back so soon is not to be mended by another beginning.
_SOON_SECONDS = 1.0
_MOST_SOON = 2
# So long a new program tries to read the state. Nobody but the new program can supervise the apps.
_READING_SECONDS = 1.0
_PAUSE_SECONDS = 0.05
# Of the last loop.
_ATTEMPTS = 5
_RETURNED = ExitStatus(step=STEP_SUPERVISOR, path="an error of PID 1's own came back")
# With less of these a program ends behind the point of no return.
_VITAL = (resource.RLIMIT_AS, resource.RLIMIT_DATA)


class Failure(Value):
    """
    An error of PID 1's own at `moment` of the monotonic clock, in work for an app, and for a client by its socket.

    None if nobody knows.
    """

    moment: float
    app: str | None
    client: int | None = None


class FirstProcess(Carried):
    """
    Everything that the next program of PID 1 goes on with.

    `dropped` is what has left the bounding set of capabilities, `filter_file` a file with the filter of the sidecars,
    `errors` the number of all errors of PID 1's own, of which `failures` are the last ones. The other objects are parts
    of the supervisor. `stopped_for` is the reason of the last loop, empty without one.
    """

    traits: PodTraits
    attributes: Attributes
    program: Program | None
    launcher: Socket | None
    lock: Descriptor
    control: Socket
    signals: Descriptor
    filter_file: Descriptor | None
    dropped: int
    errors: int
    failures: list[Failure]
    clients: Clients
    apps: list[App]
    pod: PodPolicy
    order: StartOrder
    records: Records
    limits: OwnLimits
    sidecars: Sidecars
    events: Events
    handlers: Handlers
    link: Outside
    supervisor: Supervisor

    # Not carried. Other versions of minit execute the texts too.
    resume = "from minit.launcher.start.launch import resume; resume()"
    prove = "from minit.launcher.start.launch import prove; prove()"
    stopped_for = ""

    def __init__(self, supervisor: Supervisor, launcher: Socket | None, lock: int, program: Program | None) -> None:
        self.traits = supervisor.traits
        self.attributes = supervisor.attributes
        self.program = program
        self.launcher = launcher
        self.lock = lock
        self.control = supervisor.control
        self.signals = supervisor.signals
        self.filter_file = None
        self.errors = 0
        self.failures = []
        self.clients = Clients()
        self.hold(supervisor)

    def hold(self, supervisor: Supervisor) -> None:
        """Take in the present parts of the supervisor."""
        self.dropped = privileges.dropped()
        self.apps = [*supervisor.apps.values()]
        self.supervisor = supervisor
        for name, part in supervisor.parts().items():
            setattr(self, name, part)

    def encode(self) -> tuple[bytes, list[int]]:
        """Return the state, and all descriptors of the state."""
        return CODEC.encode(self)

    def make_outside(self, context: Context) -> Outside:
        """Return the outside of the pod in this program, before the carried fields are taken over."""
        assert self.launcher is not None
        return LauncherLink(context, self.launcher)

    def supervise(self, begin: Callable[[Supervisor], None]) -> None:
        """
        Be PID 1 until nothing of any app is left; `begin` is the first work.

        After an error of its own PID 1 begins anew, or stops the pod by the last loop.
        """
        supervisor = self.supervisor
        reserve = Reserve()
        try:
            begin(supervisor)
            # What ran for a moment only does not pay for another program.
            if not supervisor.pod.finished:
                self._keep_specs()
                reserve.fill(len(self.apps))
            while not supervisor.pod.finished:
                serve(supervisor, self.clients)
                if supervisor.is_to_execute:
                    self._execute_as_asked(reserve)
            supervisor.drain()
            # A launcher killed meanwhile has left the caller's terminal to PID 1.
            supervisor.turn()
            supervisor.journal.event(PodEvent.POD_ENDED, status=supervisor.pod.exit_code or 0)
            supervisor.journal.events.flush()
        except Exception as error:
            reserve.let_go()
            self._begin_anew(error, reserve)

    def _keep_specs(self) -> None:
        try:
            self.supervisor.keep_specs()
        except OSError as error:
            # The next execution tries again.
            self.supervisor.journal.info("specs.not-kept", reason=describe(error))

    def _execute_as_asked(self, reserve: Reserve) -> None:
        self.supervisor.is_to_execute = False
        try:
            self._execute(reserve, self.clients.offer)
        except (MinitError, OSError) as error:
            self.supervisor.journal.info("supervisor.not-executed", reason=describe(error))
            self.clients.refuse_offer(describe(error))
            reserve.fill(len(self.apps))

    def _begin_anew(self, error: Exception, reserve: Reserve) -> None:
        with suppress(Exception):
            self.hold(self.supervisor)
        self._go_on_after(error, self.supervisor.journal, lambda: self._execute(reserve))

    def begin_once_more(self, error: Exception) -> None:
        """Go on after an error in a new program that may have no supervisor yet; this one stops the pod otherwise."""
        journal: Journal | None = getattr(self.supervisor, "journal", None)
        if journal is None:
            journal = Journal(self.traits.debug)
            journal.events.take_over(self.events)
            with suppress(Exception):
                journal.events.resume()
                self.events = journal.events
        with suppress(Exception):
            attach_log(journal)
            # What the program before has left, and nobody goes on with.
            close_on_exec()
        self._go_on_after(error, journal, lambda: self._execute_with_state(Reserve()))

    def _go_on_after(self, error: Exception, journal: Journal, execute: Callable[[], NoReturn]) -> None:
        """Go on by a new program; if there can be none, stop the pod in this one."""
        try:
            text = self._note_failure(error, journal)
            why = f"{text}: the third within a second"
            if len(self.failures) <= _MOST_SOON:
                complain_at_once(f"stage1: {text}: PID 1 goes on")
                execute()
        except Exception as reason:
            why = f"PID 1 cannot begin anew: {describe(reason)}"
        self.stop_pod(why, journal)

    def _note_failure(self, error: Exception, journal: Journal) -> str:
        """Count an error, write the error down, and return words about it."""
        now = time.monotonic()
        context = getattr(self.supervisor, "context", None)
        app = None if context is None else next(iter(context.at_work[-1:]), None)
        client = self.clients.at_work()
        self.errors += 1
        self.failures = [each for each in self.failures if now - each.moment < _SOON_SECONDS]
        self.failures.append(Failure(moment=now, app=app, client=None if client is None else client.socket.fileno()))
        with suppress(Exception):
            journal.event(PodEvent.SUPERVISOR_FAILED, app=app, error=type(error).__name__)
            journal.info("supervisor.traceback", traceback="".join(traceback.format_exception(error)))
            write_file(paths.STAGE1_ERRORS, b"%d\n" % self.errors)
        work = "" if app is None else f' in work for app "{app}"'
        return f"error of PID 1{work}: {type(error).__name__}: {error}"

    def returned(self) -> tuple[App | None, Client | None]:
        """Return the app and the client in whose work the last error has come back soon."""
        *earlier, last = self.failures or [Failure(moment=0.0, app=None)]
        app = next((each for each in self.apps if each.name == last.app), None)
        client = next((each for each in self.clients.present if each.socket.fileno() == last.client), None)
        return (
            app if any(each.app == last.app for each in earlier) else None,
            client if any(each.client == last.client for each in earlier) else None,
        )

    def stop_pod(self, why: str, journal: Journal) -> None:
        """Stop all apps without the supervisor, for the reason `why`, and return when nothing of the pod is left."""
        self.stopped_for = why
        with suppress(Exception):
            complain_at_once(f"stage1: {why}: the pod is stopped")
        with suppress(Exception):
            self.limits.hold()
        # Nobody waits for an answer.
        for link in (self.control, *(client.socket for client in self.clients.present)):
            with suppress(OSError):
                link.close()
        loop: LastLoop | None = None
        for _ in range(_ATTEMPTS):
            try:
                loop = loop or self._last_loop(journal)
                loop.run(self.supervisor.dead, self.supervisor.sent)
                return
            except Exception as error:
                with suppress(Exception):
                    complain_at_once(f"stage1: stop the pod: {type(error).__name__}: {error}")
        # What is left is killed with PID 1.
        self.pod.exit_code = self.pod.exit_code or EXIT_FAILURE

    def _last_loop(self, journal: Journal) -> LastLoop:
        app, _ = self.returned()
        if app is not None and app.run.end is None:
            app.run.failure = _RETURNED
        filter = self.supervisor.sidecars.filter if self.filter_file is None else read_memory_file(self.filter_file)
        return LastLoop(
            self.traits, self.apps, self.pod, self.sidecars, filter, self.link, self.launcher, self.signals, journal
        )

    def _execute(self, reserve: Reserve, offer: Offer | None = None) -> NoReturn:
        """
        Execute the program, or an offered one, with the present state.

        An error, and no change, for a failure.
        """
        with Step("execute PID 1 anew"):
            supervisor = self.supervisor
            supervisor.context.limits.hold()
            if not supervisor.context.limits.are_held(_VITAL):
                raise LaunchError("a limit of memory of PID 1 cannot be taken back")
            supervisor.keep_specs()
            self.hold(supervisor)
            self._execute_with_state(reserve, offer)

    def _execute_with_state(self, reserve: Reserve, offer: Offer | None = None) -> NoReturn:
        if self.program is None:
            raise LaunchError("this program of PID 1 cannot be executed")
        with Step("execute PID 1 anew"):
            if self.filter_file is None:
                self.filter_file = memory_file("filter", self.supervisor.sidecars.filter)
            self.events.leave()
            rescue_ends(self.supervisor.dead)
            state, descriptors = self.encode()
            memory = reserve.take_file()
            kept = {*descriptors, memory}
            try:
                fill_memory_file(memory, state)
                if offer is None:
                    program, command = self.program, self.program.command(self.resume, memory)
                else:
                    try_program(offer.program, self.prove, memory, kept, self._hide_memory)
                    program = offer.program
                    command = program.command(self.resume, memory, self.program.way_back(self.resume, memory))
                self._hide_memory()
                execute(program, command, kept)
            except BaseException:
                protect_memory(signal.SIGTERM)
                os.close(memory)
                raise

    def _hide_memory(self) -> None:
        # The memory of a pod with a user namespace is the namespace's, and PID 1 has more capabilities than anybody
        # there.
        if not self.traits.has_private_users:
            hide_memory()


# When the module is imported: later PID 1 imports nothing, and has forgotten the modules that annotations name.
CODEC = CarriedCodec(FirstProcess, Adding, Starting, Stopping, Removing)


def resume_first_process(memory: int, codec: CarriedCodec = CODEC) -> Any:
    """
    Return what PID 1 goes on with in this program, by the descriptor of the state: a FirstProcess of the codec's kind.

    The supervisor is still to be made. ManifestError for a state of another form, OSError if system calls fail for a
    second.
    """
    forget_imports()
    gc.disable()
    until = time.monotonic() + _READING_SECONDS
    with Step("go on as PID 1"):
        while True:
            try:
                signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED_SIGNALS)
                protect_memory(signal.SIGTERM)
                return codec.decode(read_memory_file(memory), "state of PID 1")
            except (OSError, MemoryError):
                if time.monotonic() >= until:
                    raise
            time.sleep(_PAUSE_SECONDS)


def make_supervisor(process: FirstProcess) -> None:
    """Make the supervisor of the carried parts."""
    privileges.note_dropped(process.dropped)
    assert process.filter_file is not None
    filter = read_memory_file(process.filter_file)
    journal = Journal(process.traits.debug)
    context = Context(process.traits, process.apps, process.launcher, journal, filter)
    outside = process.make_outside(context)
    supervisor = Supervisor(context, outside, process.control, process.signals, process.attributes)
    for name, part in supervisor.parts().items():
        part.take_over(getattr(process, name))
    supervisor.take_over(process.supervisor)
    process.hold(supervisor)
    journal.events.resume()


def settle(process: FirstProcess, memory: int) -> None:
    """
    Be PID 1 for good, with nothing left of the program before; an error in another version leads back instead.

    A client who has offered the version is answered first.
    """
    offer, events = process.clients.offer, process.supervisor.journal
    if has_way_back():
        assert offer is not None
        filter = _read_filter(offer.image)
        accept(offer)
        forget_way_back()
        old, process.program = process.program, offer.program
        assert old is not None
        process.clients.offer = None
        old.close()
        process.link.upgrade(offer.image)
        for helper in (helper for app in process.apps for helper in app.helpers):
            helper.upgrade(offer.image)
        offer.close()
        process.close_fields("filter_file")
        process.sidecars.exchange(filter)
        events.event(PodEvent.POD_UPGRADED, before=offer.version, after=minit.__version__)
    else:
        process.clients.refuse_offer("the new program has failed, and PID 1 goes on in the old program")
    # Not before: the words replace the arguments, which lead back.
    take_name(PID_1)
    os.close(memory)
    close_on_exec()


def _read_filter(image: int) -> bytes:
    """Return the filter of the sidecars of another version, by a mount of the image."""
    name = f"{paths.STAGE1_FILTERS}/{paths.SIDECAR_FILTER}"
    with Step(f"read {name}"), open(os.open(name.lstrip("/"), os.O_RDONLY | os.O_CLOEXEC, dir_fd=image), "rb") as file:
        return file.read()


def go_on(process: FirstProcess) -> None:
    """Have the supervisor look at everything anew; an app or client whose error has come back is ended."""
    supervisor = process.supervisor
    supervisor.journal.event(PodEvent.SUPERVISOR_RESUMED)
    _end_returned(process)
    supervisor.resume()
    # Some may never have had one.
    supervisor.sidecars.start_all()


def _end_returned(process: FirstProcess) -> None:
    """Have an app fail in whose work an error has come back soon, and let go of such a client."""
    app, client = process.returned()
    if client is not None:
        process.clients.dismiss(client)
    if app is not None and app.run.end is None:
        app.due.clear()
        app.run.words.clear()
        app.run.failure = _RETURNED
        process.supervisor.context.handle(app, Event.KILL)
