"""
The first program of a machine: from the kernel's exec to a running pod, and from its end to that of the machine.

PID 1 is the supervisor itself, without a launcher around it: it plans the pod, makes control groups and opens volumes
as the launcher does elsewhere, in the machine's mounts, then moves to a mount namespace of the pod's. The helper does
all that takes heavy libraries or may hang. No way leads out of here but switching the machine off.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import termios
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from minit.base.errors import EXIT_FAILURE, MinitError, describe
from minit.base.value import replace
from minit.launcher.cgroups import Hierarchy, write_group_file
from minit.launcher.health.healthhelper import HealthHelper, PodChecks
from minit.launcher.ownimage import image_descriptor
from minit.launcher.podhelper import PodHelper
from minit.launcher.start.delegation import place_pod
from minit.launcher.start.enterprofiles import write_profiles
from minit.launcher.start.load import collect_facts, load_pod
from minit.launcher.start.preparation import Start, no_sockets, prepare, supervisor_ends
from minit.linux import syscalls
from minit.linux.attributes import Attributes, Limit
from minit.linux.forks import CONSOLE_KEEPER, CONSOLE_SESSION, PID_1, fork, settle
from minit.linux.loop import wait_events
from minit.linux.ownprogram import find_program
from minit.linux.process import forget_imports, raise_limits, read_attributes, read_limits
from minit.linux.stdio import complain_at_once, open_standard_streams, record_complaints, share_console
from minit.machine.clock import correct_clock
from minit.machine.hardware import Feeder
from minit.machine.helper import Helper
from minit.machine.kernellog import start_recording
from minit.machine.machine import Machine, end_machine
from minit.machine.machinelink import CODEC, MachineLink, MachineProcess
from minit.machine.mounts import enter_mountable_root, mount_early
from minit.machine.requests import EndRequests, Senders, is_container
from minit.manifest.machineconfig import MachineConfig, parse_machine, with_command_line
from minit.plan.appspec import AppSpec
from minit.plan.inputs.runflags import RunFlags
from minit.plan.podplan import PodPlan, plan_machine
from minit.podfiles import paths
from minit.podfiles.podfile import write_pod_file
from minit.supervisor.apps.context import Context
from minit.supervisor.boot import resume_apps, run_apps
from minit.supervisor.execution import resume_first_process
from minit.supervisor.kernelsettings import bring_up_loopback
from minit.supervisor.supervisor import WATCHED_SIGNALS

_MAXIMUM_BYTES = 1 << 20
_RCU_EXPEDITED = "/sys/kernel/rcu_expedited"

_CONSOLE = "/dev/console"
_COMMAND = ("minit", "console")
# Between one session and the next, so that a console which nobody can read from costs nothing.
_PAUSE_SECONDS = 1.0
_STEAL = 1


def run_machine() -> NoReturn:
    """Be the first program of a machine until it is off."""
    if os.getpid() != 1:
        complain_at_once("minit: init: this is not the first process of a machine")
        os._exit(EXIT_FAILURE)
    forget_imports()
    machine = Machine()
    _end_after(machine, lambda: _run(machine))


def resume() -> NoReturn:
    """Be the first program in a program that PID 1 has executed; the first argument is the descriptor of the state."""
    machine = Machine()
    # Without the state nobody supervises the pod.
    machine.supervised = True
    _end_after(machine, lambda: _resume(machine, int(sys.argv[1])))


def _run(machine: Machine) -> None:
    _prepare(machine)
    if machine.config.rescue:
        complain_at_once("minit: rescue: no app is started")
        return
    _note_end(machine, _run_pod(machine))


def _resume(machine: Machine, memory: int) -> None:
    process = resume_first_process(memory, CODEC)
    assert isinstance(process, MachineProcess)
    machine.take_over(process.link.machine)
    process.link.machine = machine
    share_console()
    if machine.recorder is not None:
        record_complaints(machine.recorder.write)
    resume_apps(process, memory)
    _note_end(machine, process)


def _note_end(machine: Machine, process: MachineProcess) -> None:
    """Say how the pod has ended, and end a trial."""
    if process.stopped_for:
        # The last loop has told the reason.
        machine.failed = machine.crashed = True
        _end_trial(machine, process.stopped_for)
        return
    code = process.pod.exit_code or 0
    complain_at_once(f"minit: the pod has ended with {code}")
    # The apps of a machine that has done its work need not be healthy for longer.
    is_done = code == 0 and machine.config.trial.healthy_seconds == 0
    _end_trial(machine, None if is_done else f"the pod has ended with {code}")


def _end_after(machine: Machine, work: Callable[[], None]) -> NoReturn:
    """Do the work of a machine, and end the machine: its first program must not end, whatever happens."""
    try:
        _do(machine, work)
    finally:
        end_machine(machine)


def _do(machine: Machine, work: Callable[[], None]) -> None:
    try:
        work()
    except (MinitError, OSError) as error:
        # Of a pod that runs it means that nobody supervises it any more.
        machine.failed, machine.crashed = True, machine.supervised
        complain_at_once(f"minit: {describe(error)}")
        _end_trial(machine, describe(error))
    except BaseException as error:
        machine.failed = machine.crashed = True
        complain_at_once(f"minit: {type(error).__name__}: {describe(error)} (a bug in minit)")
        traceback.print_exc()
    finally:
        if machine.lock is not None:
            os.close(machine.lock)


def _prepare(machine: Machine) -> None:
    """Make of the machine what the launcher of a pod finds elsewhere."""
    open_standard_streams()
    share_console()
    syscalls.set_process_name("minit")
    os.umask(0o022)
    # A signal that met PID 1 without a handler would vanish.
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED_SIGNALS)
    os.environ.pop("PYTHONHASHSEED", None)  # for the interpreter alone, by the program that executed it
    os.environ["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    enter_mountable_root()
    problems = mount_early()
    machine.recorder = start_recording()
    for line in problems:
        complain_at_once(f"minit: {line}")
    machine.senders = Senders(is_container=is_container())
    try:
        machine.requests = EndRequests()
    except OSError as error:
        complain_at_once(f"minit: {describe(error)}")
    _correct_clock()
    machine.config, problems = _read_config()
    for line in problems:
        complain_at_once(f"minit: {line}")
    _open_watchdog(machine, is_last=False)
    try:
        # Ctrl-Alt-Del becomes a SIGINT; in a container it is nothing of ours.
        syscalls.reboot(syscalls.REBOOT_SIGNAL_ON_CTRL_ALT_DEL)
    except OSError:
        pass
    try:
        syscalls.sethostname(machine.config.hostname)
        bring_up_loopback()
    except OSError as error:
        complain_at_once(f"minit: {describe(error)}")
    machine.helper = Helper(machine.config, machine.image)
    if not machine.config.rescue:
        # A user at the prompt is told that the pod runs, though it is not ready.
        machine.lock = _lock(machine.lock)
    if machine.config.console:
        _keep_console()
    try:
        machine.helper.wait(machine.feed, machine.requests)
    finally:
        # Somebody who asks for a rescue is there, and decides.
        machine.on_trial = machine.helper.on_trial and not machine.config.rescue
        # Its driver may be a module.
        _open_watchdog(machine, is_last=True)
        # So may the one that the kernel has read the time from now.
        _correct_clock()


def _end_trial(machine: Machine, failure: str | None) -> None:
    """Have this version kept, or the next boot know why it is not, if it is on trial still."""
    if machine.on_trial and machine.helper is not None:
        failure = machine.trial_failure or failure
        machine.helper.end_trial(failure, machine.feed)
        machine.on_trial = failure is not None


def _correct_clock() -> None:
    line = correct_clock()
    if line is not None:
        complain_at_once(f"minit: {line}")


def _read_config() -> tuple[MachineConfig, list[str]]:
    """Return the machine's configuration; what is wrong with it leaves the defaults, not a dead machine."""
    config, problems = MachineConfig(), []
    try:
        config = parse_machine(_read(paths.MACHINE_CONFIG), paths.MACHINE_CONFIG)
    except FileNotFoundError:
        pass
    except (MinitError, OSError) as error:
        problems.append(f"{describe(error)}: going on as without it")
    try:
        config, ignored = with_command_line(config, _read(paths.KERNEL_COMMAND_LINE).decode(errors="replace"))
        problems += ignored
    except OSError as error:
        problems.append(describe(error))
    return config, problems


def _open_watchdog(machine: Machine, *, is_last: bool) -> None:
    """Open the watchdog if it is wanted and not open yet; that it cannot be is said the last time."""
    if machine.config.watchdog is None or machine.feeder is not None:
        return
    try:
        machine.feeder = Feeder(machine.config.watchdog)
    except OSError as error:
        if is_last:
            complain_at_once(f"minit: watchdog {describe(error)}")


def _run_pod(machine: Machine) -> MachineProcess:
    """Run the pod in the machine's pod directory until its end."""
    config = machine.config
    os.chdir(paths.MACHINE_POD)
    if config.manifest is not None:
        os.stat(config.manifest)  # mount(2) would not say which of the two is missing
        syscalls.mount(config.manifest, paths.POD_MANIFEST, None, syscalls.MS_BIND)
    flags = RunFlags(
        uuid=paths.MACHINE_UUID,
        debug=config.debug,
        hostname=config.hostname,
        resolv_mode="host" if config.name_servers or config.interfaces else "default",
    )
    limits = read_limits()
    start = Start(
        plan=lambda hierarchies: _plan(flags, hierarchies, limits),
        place=lambda plan, hierarchies: place_pod(hierarchies, plan.uuid, plan.controllers),
        sockets=no_sockets,
        begin=lambda placed: None,
        find=lambda hierarchies: hierarchies,
    )
    raise_limits()
    helpers: list[PodHelper] = []
    prepared = prepare(start, helpers)
    plan, subcgroup = prepared.plan, prepared.subcgroup
    attributes = read_attributes()
    _check_health(helpers, plan, prepared.specs, attributes)
    machine.pod_helpers = [helper.plain() for helper in helpers]
    _join_group(prepared.hierarchies, subcgroup)
    machine.lock = _lock(machine.lock)
    for name, text in ((paths.POD_CREATED, ""), (paths.POD_SUBCGROUP, subcgroup), (paths.POD_PID, "1\n")):
        write_pod_file(name, os.fsencode(text))
    ends = supervisor_ends(prepared, None, machine.lock, attributes)
    ends = replace(ends, kept=_leave_mounts(machine))

    def make_outside(context: Context) -> MachineLink:
        machine.supervised = True
        return MachineLink(machine, context)

    settle(PID_1, ends.descriptors())
    program = find_program(machine.image, keeps_image=True)
    return run_apps(plan, ends, make_outside, lambda supervisor: MachineProcess(supervisor, ends.lock, program))


def _plan(flags: RunFlags, hierarchies: Sequence[Hierarchy], limits: Sequence[Limit]) -> PodPlan:
    pod = load_pod(flags)
    plan = plan_machine(pod, flags, collect_facts(hierarchies, pod, flags, limits))
    for line in plan.notices():
        complain_at_once(f"minit: {line}")
    return plan


def _check_health(helpers: list[PodHelper], plan: PodPlan, specs: Sequence[AppSpec], attributes: Attributes) -> None:
    """Start what checks the apps, if any has a check."""
    if not any(app.life.health for app in plan.apps):
        return
    # A command of a check is entered into the app.
    write_profiles(specs, attributes)
    helpers.append(HealthHelper(PodChecks(plan, os.getpid())))


def _join_group(hierarchies: Sequence[Hierarchy], subcgroup: str) -> None:
    """Move into the group that a launcher would have started PID 1 in."""
    with _short_waits():
        for hierarchy in hierarchies:
            if hierarchy.is_v2:
                write_group_file(f"{hierarchy.mount_point}/{subcgroup}/init.scope/cgroup.procs", "0")


@contextmanager
def _short_waits() -> Iterator[None]:
    """
    Have the kernel not wait for its next ticks where it waits for the end of what other processors read.

    That is for a move between control groups, and some eight milliseconds.
    """
    try:
        is_changed = not int(_read(_RCU_EXPEDITED))
        if is_changed:
            write_group_file(_RCU_EXPEDITED, "1")
    except OSError:
        is_changed = False  # there is no such file, or /sys is not this machine's to write
    try:
        yield
    finally:
        if is_changed:
            write_group_file(_RCU_EXPEDITED, "0")


def _lock(held: int | None) -> int:
    """
    Return a descriptor of the locked pod directory, by which others know that the pod runs.

    That is `held`, unless the machine's state has been mounted over the directory since.
    """
    lock = os.open(paths.MACHINE_POD, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if held is not None and os.path.samestat(os.fstat(lock), os.fstat(held)):
        os.close(lock)
        return held
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if held is not None:
        os.close(held)
    return lock


def _leave_mounts(machine: Machine) -> tuple[int, ...]:
    """Move to a mount namespace of the pod's, in which the working directory is the stage1 root."""
    machine.namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    syscalls.unshare(syscalls.CLONE_NEWNS)
    os.chdir(paths.POD_STAGE1_ROOTFS)
    return tuple(machine.pod_descriptors())


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read(_MAXIMUM_BYTES)


def _keep_console() -> None:
    """
    Fork the process that gives the console a prompt; it lives as long as the machine.

    When somebody types there, it starts the command in the machine's own mounts, as a session of its own. Whatever
    becomes of one session, the next Enter gives another.
    """
    fork(CONSOLE_KEEPER, _serve_console, {"image": image_descriptor()}, tell=_tell_of_console)


def _tell_of_console(error: BaseException) -> None:
    complain_at_once(f"minit: console: {describe(error)}")


def _serve_console() -> NoReturn:
    while True:
        _serve_session()
        time.sleep(_PAUSE_SECONDS)


def _serve_session() -> None:
    """Wait until somebody types and return when his session is over."""
    console = os.open(_CONSOLE, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        os.write(console, b"minit: press Enter for a prompt\n")
        # Nothing is taken: what was typed is the first line of the session. A console may be hung up as well.
        if wait_events({console: select.POLLIN})[console] & select.POLLHUP:
            return
        os.waitpid(fork(CONSOLE_SESSION, _begin_session, {"console": console}, tell=_tell_of_console), 0)
    finally:
        os.close(console)


def _begin_session() -> NoReturn:
    fcntl.ioctl(0, termios.TIOCSCTTY, _STEAL)
    os.execv(paths.MACHINE_COMMAND, _COMMAND)
