"""The commands for compose files: the group compose."""

from __future__ import annotations

import math
import os
import shlex
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import click

from minit.base.errors import EXIT_FAILURE, MinitError, PodError
from minit.base.value import replace
from minit.cli.commandgroups import COMPOSE_COMMANDS
from minit.cli.commands.appcommands import read_directory, read_environment, read_user
from minit.cli.commands.kubecommands import write_documents
from minit.cli.commands.outputcommands import STREAMS, read_moment, read_tail
from minit.cli.flags.appoptions import Variables
from minit.cli.flags.sharedoptions import in_order, read_seconds, stage1_path_option, timeout_option
from minit.cli.grammar import CommandTable, MinitCommand, MinitGroup
from minit.cli.invocation import Invocation
from minit.cli.text.formats import align, format_age, json_text
from minit.cli.text.logview import Choice, view_pods
from minit.cli.text.podtext import host_place, pod_place
from minit.cli.text.progressdisplay import show_progress
from minit.compose.loading import LoadedProject, Where, load
from minit.compose.projectpods import (
    ProjectPod,
    exit_code_of,
    find_pods,
    health_of,
    remove_networks,
    remove_pods,
    remove_volumes,
    restarted_with,
    start_pods,
    stop_pods,
)
from minit.compose.tables import Service
from minit.compose.translate import PROJECT_LABEL
from minit.compose.up import Images, OneOff, Up, UpRequest, image_name, image_of, remove_images
from minit.linux.stdio import flush_output
from minit.podfiles.enterchanges import EnterChanges
from minit.pods.requests import Stage1Request
from minit.stage0.apps.enter import enter_pod
from minit.stage0.images.store import Store
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods.exposedports import forwarded_ports
from minit.stage0.pods.poddirectory import Pod, PodState, open_pod
from minit.stage0.pods.podstatus import read_pod_manifest, read_pod_status

_WHERE = "minit.compose.where"
_INTERRUPTED = 130
_WITHOUT_LOGS = (PodState.EMBRYO, PodState.PREPARING, PodState.ABORTED_PREPARE, PodState.PREPARED)


def _keep_where(
    file: tuple[str, ...],
    project_name: str | None,
    profile: tuple[str, ...],
    project_directory: str | None,
    env_file: tuple[str, ...],
) -> None:
    context = click.get_current_context()
    context.meta[_WHERE] = Where(
        files=file,
        name=project_name,
        profiles=profile,
        directory=project_directory,
        environment_files=env_file,
    )


compose_group = MinitGroup(
    "compose",
    commands=CommandTable(COMPOSE_COMMANDS),
    callback=_keep_where,
    params=[
        click.Option(
            ["-f", "--file"],
            metavar="FILE",
            multiple=True,
            help="Compose file, `-` for standard input; later files go over earlier ones.  [default: compose.yaml and"
            " compose.override.yaml, here or above]",
        ),
        click.Option(["-p", "--project-name"], metavar="NAME", help="Name of the project.  [default: the directory's]"),
        click.Option(
            ["--profile"], metavar="NAME", multiple=True, help="Services of this profile as well; `*` for all."
        ),
        click.Option(
            ["--project-directory"],
            metavar="DIR",
            help="Where relative paths begin.  [default: that of the first file]",
        ),
        click.Option(
            ["--env-file"], metavar="FILE", multiple=True, help="Variables for the compose file.  [default: .env]"
        ),
    ],
)


def _where() -> Where:
    found = click.get_current_context().meta.get(_WHERE)
    assert isinstance(found, Where)
    return found


def _load(invocation: Invocation, scales: tuple[tuple[str, int], ...] = (), *, by_name: bool = False) -> LoadedProject:
    """Return the project; with `by_name` a name alone will do, for the pods that there are."""
    return load(replace(_where(), scales=scales), os.environ, invocation.note, by_name=by_name)


def _read_scales(
    ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, int], ...]:
    found = []
    for value in values:
        name, separator, count = value.partition("=")
        if not separator or not count.isdecimal() or len(count) > 3:
            raise click.BadParameter(f'expected SERVICE=COUNT, got "{value}"', ctx, parameter)
        found.append((name, int(count)))
    return tuple(found)


_services = click.argument("services", metavar="[SERVICE]...", nargs=-1)

_up_options = in_order(
    click.option("-d", "--detach", is_flag=True, help="Return once the services run."),
    click.option("--build", is_flag=True, help="Build images first, also those that there are."),
    click.option("--no-build", is_flag=True, help="Build no image; a missing one is an error."),
    click.option("--force-recreate", is_flag=True, help="Make all pods anew, also those that are as they should be."),
    click.option("--no-recreate", is_flag=True, help="Leave pods as they are, even if the file has changed."),
    click.option("--no-deps", is_flag=True, help="Without the services that the named services depend on."),
    click.option("--remove-orphans", is_flag=True, help="Remove pods of services that the file has no more."),
    click.option(
        "--scale",
        metavar="SERVICE=COUNT",
        multiple=True,
        callback=_read_scales,
        help="So many pods of a service.",
    ),
    click.option("--pull", type=click.Choice(("always", "missing", "never")), help="When images are fetched."),
    click.option("--wait", is_flag=True, help="Return once the services are healthy; with --detach."),
    click.option(
        "--wait-timeout", type=int, metavar="SECONDS", callback=read_seconds, help="The longest time for --wait."
    ),
    timeout_option,
    click.option("--quiet-pull", is_flag=True, help="Show no progress of images."),
    click.option("--abort-on-container-exit", is_flag=True, help="Stop all pods once one has ended."),
    click.option("--exit-code-from", metavar="SERVICE", help="The same, with the exit code of this service."),
    stage1_path_option,
)


@click.command(cls=MinitCommand)
@_up_options
@_services
@click.pass_obj
def up(
    invocation: Invocation,
    /,
    detach: bool,
    services: tuple[str, ...],
    scale: tuple[tuple[str, int], ...],
    abort_on_container_exit: bool,
    exit_code_from: str | None,
    **options: Any,
) -> None:
    """
    A service is a pod, or several, on the networks of the project. Pods that are as the file says stay; others are
    made anew. If a pod cannot be made or started, the pods that were made are removed again.

    \b
      minit compose up -d
      minit compose -f compose.yaml -f production.yaml up -d --wait web
      minit compose up --exit-code-from=tests

    """
    is_short = abort_on_container_exit or exit_code_from is not None
    if is_short and (detach or options["wait"]):
        raise click.UsageError("--abort-on-container-exit and --exit-code-from are not for --detach and --wait")
    invocation.become_root(in_scope=True)
    loaded = _load(invocation, scale)
    if exit_code_from is not None:
        loaded.chosen((exit_code_from,), alone=True)
    since_ns = time.time_ns()
    with _interruptible():
        pods = _up(invocation, loaded, services, **options)
        if detach or options["wait"]:
            return
        first = _attend(invocation, loaded, pods, since_ns, options["timeout"], is_short=is_short)
        told = next((pod for pod in pods if pod.service == exit_code_from), first)
        if is_short and told is not None:
            code = exit_code_of(invocation.caller, told)
            raise SystemExit(EXIT_FAILURE if code is None else code)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Have SIGTERM do what Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _attend(
    invocation: Invocation,
    loaded: LoadedProject,
    pods: list[ProjectPod],
    since_ns: int,
    timeout: float | None,
    *,
    is_short: bool,
) -> ProjectPod | None:
    """
    Show the output of pods until all have ended; Ctrl-C stops them, and a second one kills them.

    With `is_short` the first end stops all; returns the pod that has ended then.
    """
    attached = [pod for pod in pods if loaded.project.service(pod.service).attach]
    with ExitStack() as stack:
        opened = [(stack.enter_context(open_pod(invocation.data, pod.uuid)), _label(loaded, pod)) for pod in attached]
        view = view_pods(invocation, opened, _choice(follow=True, since_ns=since_ns))
        if view is None:
            return None
        try:
            if is_short:
                watched = [(pod, stack.enter_context(open_pod(invocation.data, pod.uuid))) for pod in pods]
                view.show(until=lambda: any(_has_ended(pod) for _, pod in watched))
                first = next((pod for pod, each in watched if _has_ended(each)), None)
                stop_pods(invocation.caller, pods, timeout, invocation.note)
                view.show()
                return first
            view.show()
            return None
        except KeyboardInterrupt:
            invocation.note("stopping (Ctrl-C again kills)")
            try:
                stop_pods(invocation.caller, pods, timeout, invocation.note)
            except KeyboardInterrupt:
                stop_pods(invocation.caller, pods, 0, invocation.note)
            view.show()
            raise SystemExit(_INTERRUPTED) from None


def _has_ended(pod: Pod) -> bool:
    return not pod.refresh() or pod.state is not PodState.RUNNING


def _label(loaded: LoadedProject, pod: ProjectPod) -> str:
    """Return the name of a pod without the project's; a `container_name` is left whole."""
    project = f"{loaded.project.name}-"
    return pod.shown.removeprefix(project) if pod.shown.startswith(f"{project}{pod.service}-") else pod.shown


def _choice(
    *,
    follow: bool = False,
    tail: int | None = None,
    timestamps: bool = False,
    since_ns: int | None = None,
    until_ns: int | None = None,
) -> Choice:
    return Choice(
        apps=(),
        follow=follow,
        since_ns=since_ns,
        until_ns=until_ns,
        tail=tail,
        streams=frozenset(name.encode() for name in STREAMS),
        timestamps=timestamps,
        json=False,
    )


@click.command(cls=MinitCommand)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written, until all pods have ended.")
@click.option("-n", "--tail", metavar="N", default="all", callback=read_tail, help="Only the last N lines of each.")
@click.option("-t", "--timestamps", is_flag=True, help="Begin each line with its time, in UTC.")
@click.option("--since", metavar="TIME", callback=read_moment, help="Only lines from TIME on: 10m, or 18:00.")
@click.option("--until", metavar="TIME", callback=read_moment, help="Only lines up to TIME.")
@_services
@click.pass_obj
def logs(
    invocation: Invocation,
    follow: bool,
    tail: int | None,
    timestamps: bool,
    since: int | None,
    until: int | None,
    services: tuple[str, ...],
) -> None:
    """
    Each line begins with the pod that it is of.

    \b
      minit compose logs -f --tail=20 web

    """
    loaded = _load(invocation, by_name=True)
    pods = [pod for pod in _pods(invocation, loaded, services) if pod.state not in _WITHOUT_LOGS]
    with ExitStack() as stack:
        opened = [(stack.enter_context(open_pod(invocation.data, pod.uuid)), _label(loaded, pod)) for pod in pods]
        choice = _choice(follow=follow, tail=tail, timestamps=timestamps, since_ns=since, until_ns=until)
        view = view_pods(invocation, opened, choice)
        if view is not None:
            view.show()


@click.command("exec", cls=MinitCommand, stop_at_operand=True)
@click.option(
    "--index", type=int, metavar="N", help="Number of the pod, if the service has several.  [default: the first]"
)
@click.option("-u", "--user", metavar="UID[:GID]", callback=read_user, help="User in place of the service's.")
@click.option("-w", "--workdir", metavar="DIR", callback=read_directory, help="Working directory.")
@click.option(
    "-e", "--env", metavar="NAME=VALUE", multiple=True, callback=read_environment, help="Variable of the command."
)
@click.option("--privileged", is_flag=True, help="With all capabilities that PID 1 has.")
@click.option(
    "-T", "--no-TTY", "no_tty", is_flag=True, help="Accepted for docker's sake: there is a terminal if minit has."
)
@click.argument("service")
@click.argument("command", nargs=-1, metavar="COMMAND [ARG]...", type=click.UNPROCESSED, required=True)
@click.pass_obj
def execute(
    invocation: Invocation,
    index: int | None,
    user: tuple[int | None, int | None],
    workdir: str | None,
    env: Variables,
    privileged: bool,
    no_tty: bool,
    service: str,
    command: tuple[str, ...],
) -> None:
    """
    The command's user is the service's. The exit code is the command's.

    \b
      minit compose exec web sh -c 'ps aux'

    """
    invocation.become_root(in_scope=True)
    loaded = _load(invocation, by_name=True)
    pods = [pod for pod in _pods(invocation, loaded, (service,)) if pod.state is PodState.RUNNING]
    pods = [pod for pod in pods if index is None or pod.number == index]
    if not pods:
        raise PodError(f"service {service} does not run")
    with Store(invocation.data) as store, open_pod(invocation.data, pods[0].uuid) as pod:
        enter_pod(
            pod,
            TreeStore(invocation.data, store).path,
            None,
            command,
            flush_output,
            privileged=privileged,
            as_app=user[0] is None and not privileged,
            changes=EnterChanges(environment=env, working_directory=workdir, uid=user[0], gid=user[1]),
        )


@click.command(cls=MinitCommand, stop_at_operand=True)
@click.option("-d", "--detach", is_flag=True, help="Run in the background, and print the UUID.")
@click.option("--rm", "removed", is_flag=True, help="Remove the pod once it has ended.")
@click.option(
    "--name", metavar="NAME", help="Name of the pod.  [default: one of the project, the service and a number]"
)
@click.option("--entrypoint", metavar="WORDS", help="In place of the entrypoint of the service.")
@click.option("-e", "--env", metavar="NAME=VALUE", multiple=True, callback=read_environment, help="Variable.")
@click.option("-u", "--user", metavar="USER[:GROUP]", help="User in place of the service's.")
@click.option("-w", "--workdir", metavar="DIR", callback=read_directory, help="Working directory.")
@click.option("-P", "--service-ports", is_flag=True, help="Publish the ports of the service.")
@click.option("--no-deps", is_flag=True, help="Without the services that the service depends on.")
@click.option("--build", is_flag=True, help="Build images first, also those that there are.")
@click.option("--pull", type=click.Choice(("always", "missing", "never")), help="When images are fetched.")
@click.option("--quiet-pull", is_flag=True, help="Show no progress of images.")
@click.option("-T", "--no-TTY", "no_tty", is_flag=True, help="Without the terminal, also if minit has one.")
@stage1_path_option
@click.argument("service")
@click.argument("command", nargs=-1, metavar="[COMMAND] [ARG]...", type=click.UNPROCESSED)
@click.pass_obj
def run(
    invocation: Invocation,
    detach: bool,
    removed: bool,
    name: str | None,
    entrypoint: str | None,
    env: Variables,
    user: str | None,
    workdir: str | None,
    service_ports: bool,
    no_deps: bool,
    build: bool,
    pull: str | None,
    quiet_pull: bool,
    no_tty: bool,
    stage1_path: str | None,
    service: str,
    command: tuple[str, ...],
) -> None:
    """
    The pod has all of the service but its ports, and its restarts; the words of the command are in the place of the
    service's. The exit code is the command's. compose down removes the pod.

    \b
      minit compose run --rm web python manage.py migrate

    """
    invocation.become_root(in_scope=True)
    loaded = _load(invocation)
    once = OneOff(
        command=command,
        entrypoint=None if entrypoint is None else tuple(shlex.split(entrypoint)),
        environment=env,
        user=None if user is None else _user_and_group(user),
        working_directory=workdir,
        name=name,
        has_service_ports=service_ports,
        is_detached=detach,
        is_removed=removed,
        is_interactive=not (detach or no_tty) and os.isatty(0) and os.isatty(1),
    )
    request = UpRequest(
        images=Images(pull=pull, builds=build),
        without_dependencies=no_deps,
        stage1=Stage1Request(path=stage1_path),
    )
    show = partial(show_progress, invocation, quiet=quiet_pull)
    with _interruptible():
        invocation.say(Up(invocation.caller, loaded, request, show, invocation.note).run_once(service, once))


def _user_and_group(text: str) -> tuple[str, str | None]:
    user, separator, group = text.partition(":")
    return user, group if separator else None


@click.command(cls=MinitCommand)
@timeout_option
@_services
@click.pass_obj
def stop(invocation: Invocation, timeout: float | None, services: tuple[str, ...]) -> None:
    """
    They stay, and start again with compose start, or with compose up.

    \b
      minit compose stop
      minit compose stop --timeout=2 web

    """
    invocation.become_root()
    stop_pods(invocation.caller, _pods(invocation, _load(invocation, by_name=True), services), timeout, invocation.note)


@click.command(cls=MinitCommand)
@_services
@click.pass_obj
def start(invocation: Invocation, services: tuple[str, ...]) -> None:
    """
    Their files are as they left them.

    \b
      minit compose start

    """
    invocation.become_root(in_scope=True)
    loaded = _load(invocation, by_name=True)
    pods = _pods(invocation, loaded, services)
    if not pods:
        raise PodError(f"project {loaded.project.name} has no pods: minit compose up makes them")
    start_pods(invocation.caller, pods, invocation.note)


@click.command(cls=MinitCommand)
@timeout_option
@_services
@click.pass_obj
def restart(invocation: Invocation, timeout: float | None, services: tuple[str, ...]) -> None:
    """
    \b
      minit compose restart web

    """
    invocation.become_root(in_scope=True)
    loaded = _load(invocation, by_name=True)
    chosen = _pods(invocation, loaded, services)
    if services:
        every = _pods(invocation, loaded, ())
        names = restarted_with(every, services)
        chosen = [pod for pod in every if pod.service in names]
    stop_pods(invocation.caller, chosen, timeout, invocation.note)
    ids = {pod.uuid for pod in chosen}
    ended = [pod for pod in find_pods(invocation.caller, loaded.project.name) if pod.uuid in ids]
    start_pods(invocation.caller, ended, invocation.note)


@click.command(cls=MinitCommand)
@click.option("--policy", type=click.Choice(("always", "missing")), default="always", help="[default: always]")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
@click.option("--ignore-buildable", is_flag=True, help="Leave out images that are built.")
@_services
@click.pass_obj
def pull(invocation: Invocation, policy: str, quiet: bool, ignore_buildable: bool, services: tuple[str, ...]) -> None:
    """
    \b
      minit compose pull

    """
    invocation.become_root()
    loaded = _load(invocation)
    fetched = [replace(each, build=None) for each in loaded.chosen(services) if each.image is not None]
    if ignore_buildable:
        fetched = [each for each in fetched if loaded.project.service(each.name).build is None]
    _provide(invocation, loaded, fetched, Images(pull=policy), quiet=quiet)


def _provide(
    invocation: Invocation, loaded: LoadedProject, services: Sequence[Service], how: Images, *, quiet: bool
) -> None:
    """Fetch or build the images of services, and print their names and ids."""
    with Store(invocation.data) as store:
        for service in services:
            with show_progress(invocation, quiet=quiet) as progress:
                image = image_of(invocation.caller, store, loaded, service, how, progress)
            invocation.say(f"{image_name(loaded.project, service)} {image.id}")


@click.command("build", cls=MinitCommand)
@click.option("--no-cache", is_flag=True, help="Do every step again.")
@click.option("--pull", is_flag=True, help="Fetch the images that builds begin with again.")
@click.option(
    "--build-arg", metavar="NAME=VALUE", multiple=True, callback=read_environment, help="Argument of the builds."
)
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
@_services
@click.pass_obj
def build_images(
    invocation: Invocation, no_cache: bool, pull: bool, build_arg: Variables, quiet: bool, services: tuple[str, ...]
) -> None:
    """
    \b
      minit compose build
      minit compose build --no-cache web

    """
    invocation.become_root(in_scope=True)
    loaded = _load(invocation)
    built = []
    for service in loaded.chosen(services):
        if service.build is not None:
            wanted = service.build
            changed = replace(
                wanted,
                no_cache=no_cache or wanted.no_cache,
                pull=pull or wanted.pull,
                args=tuple({**dict(wanted.args), **dict(build_arg)}.items()),
            )
            built.append(replace(service, build=changed))
    _provide(invocation, loaded, built, Images(builds=True), quiet=quiet)


def _up(
    invocation: Invocation,
    loaded: LoadedProject,
    services: tuple[str, ...],
    build: bool,
    no_build: bool,
    force_recreate: bool,
    no_recreate: bool,
    no_deps: bool,
    remove_orphans: bool,
    pull: str | None,
    wait: bool,
    wait_timeout: float | None,
    timeout: float | None,
    quiet_pull: bool,
    stage1_path: str | None,
) -> list[ProjectPod]:
    if force_recreate and no_recreate:
        raise click.UsageError("--force-recreate and --no-recreate exclude each other")
    request = UpRequest(
        services=services,
        images=Images(pull=pull, builds=build, never_builds=no_build),
        recreates=force_recreate,
        never_recreates=no_recreate,
        without_dependencies=no_deps,
        removes_orphans=remove_orphans,
        waits=wait,
        timeout_seconds=timeout,
        stage1=Stage1Request(path=stage1_path),
        wait_seconds=math.inf if wait_timeout is None else wait_timeout,
    )
    show = partial(show_progress, invocation, quiet=quiet_pull)
    return Up(invocation.caller, loaded, request, show, invocation.note).run()


@click.command(cls=MinitCommand)
@click.option("-v", "--volumes", is_flag=True, help="Remove the named volumes of the file as well.")
@click.option("--rmi", type=click.Choice(("all", "local")), help="Remove the images of the services as well.")
@click.option("--remove-orphans", is_flag=True, help="Remove pods of services that the file has no more.")
@timeout_option
@_services
@click.pass_obj
def down(
    invocation: Invocation,
    volumes: bool,
    rmi: str | None,
    remove_orphans: bool,
    timeout: float | None,
    services: tuple[str, ...],
) -> None:
    """
    Pods are stopped before those that they depend on.

    \b
      minit compose down
      minit compose down --volumes

    """
    invocation.become_root()
    loaded = _load(invocation, by_name=True)
    pods = _pods(invocation, loaded, services, with_one_offs=True)
    known = {name for name, _ in loaded.project.services}
    orphans = [pod.shown for pod in pods if loaded.files and pod.service not in known]
    if orphans and not remove_orphans:
        invocation.note(
            f"warning: pods of services that the project has no more: {', '.join(orphans)} (--remove-orphans)"
        )
        pods = [pod for pod in pods if pod.service in known]
    remove_pods(invocation.caller, pods, timeout, invocation.note)
    if not services and not (orphans and not remove_orphans):
        remove_networks(invocation.caller, loaded.project.name, invocation.note)
    if volumes:
        remove_volumes(invocation.caller, loaded, invocation.note)
    if rmi is not None:
        chosen = [service for service in loaded.chosen((), alone=True) if rmi == "all" or service.image is None]
        remove_images(invocation.caller, [image_name(loaded.project, service) for service in chosen], invocation.note)


def _pods(
    invocation: Invocation, loaded: LoadedProject, services: tuple[str, ...], *, with_one_offs: bool = False
) -> list[ProjectPod]:
    """Return the pods of services, all of the project without a name; PodError for a name that no service has."""
    if services and loaded.files:
        loaded.chosen(services, alone=True)
    found = find_pods(invocation.caller, loaded.project.name, with_one_offs=with_one_offs)
    return [pod for pod in found if not services or pod.service in services]


@click.command(cls=MinitCommand)
@click.option("-a", "--all", "every", is_flag=True, help="Also pods that do not run.")
@click.option("-q", "--quiet", is_flag=True, help="Print the UUIDs alone.")
@click.option("--services", "names_only", is_flag=True, help="Print the names of the services alone.")
@click.option(
    "--format", "output_format", type=click.Choice(("table", "json")), default="table", help="[default: table]"
)
@_services
@click.pass_obj
def ps(
    invocation: Invocation,
    every: bool,
    quiet: bool,
    names_only: bool,
    output_format: str,
    services: tuple[str, ...],
) -> None:
    """
    With --format=json each pod is an object in a line of its own.

    \b
      minit compose ps
      minit compose ps --all --format=json

    """
    loaded = _load(invocation, by_name=True)
    shown = [_facts(invocation, pod) for pod in _pods(invocation, loaded, services)]
    shown = [facts for facts in shown if facts and (every or facts["State"] == "running")]
    if names_only:
        lines = list(dict.fromkeys(str(facts["Service"]) for facts in shown))
        invocation.say("".join(f"{line}\n" for line in lines), end="")
    elif quiet:
        invocation.say("".join(f"{facts['ID']}\n" for facts in shown), end="")
    elif output_format == "json":
        for facts in shown:
            invocation.say(json_text(facts, "json"))
    else:
        rows: list[tuple[str, ...]] = [("NAME", "IMAGE", "SERVICE", "CREATED", "STATUS", "PORTS")]
        rows += [
            tuple(str(facts[name]) for name in ("Name", "Image", "Service", "RunningFor", "Status", "Ports"))
            for facts in shown
        ]
        invocation.say(align(rows), end="")


def _facts(invocation: Invocation, found: ProjectPod) -> dict[str, object]:
    """Return what is shown of a pod, by Docker's names; nothing of a pod that is gone."""
    try:
        with open_pod(invocation.data, found.uuid) as pod:
            status = read_pod_status(pod)
            health = health_of(pod)
            ports = forwarded_ports(read_pod_manifest(pod)) if status.state is PodState.RUNNING else ()
    except MinitError:
        return {}
    app = status.apps[0] if status.apps else None
    now = time.time_ns()
    state = str(status.state)
    running = f"Up {format_age(status.started_ns, now).removesuffix(' ago')}{health and f' ({health})'}"
    code = None if app is None or status.state is PodState.RUNNING else app.exit_code
    ended = f"Exited ({code})" if code is not None else state.capitalize()
    return {
        "ID": found.uuid,
        "Name": found.shown,
        "Project": found.labels.get(PROJECT_LABEL, ""),
        "Service": found.service,
        "Image": (None if app is None else app.image_name) or "",
        "State": state,
        "Status": running if status.state is PodState.RUNNING else ended,
        "Health": health,
        "ExitCode": code or 0,
        "RunningFor": format_age(status.created_ns, now),
        "Ports": ", ".join(f"{host_place(port)}->{pod_place(port)}" for port in ports),
        "Publishers": [
            {
                "URL": port.host_ip or "0.0.0.0",
                "TargetPort": port.pod_port,
                "PublishedPort": port.host_port,
                "Protocol": port.protocol,
            }
            for port in ports
        ],
        "Labels": ",".join(f"{name}={value}" for name, value in found.labels.items()),
    }


@click.command("config", cls=MinitCommand)
@click.option("--format", "output_format", type=click.Choice(("yaml", "json")), default="yaml", help="[default: yaml]")
@click.option("--services", "what", flag_value="services", help="Print the names of the services alone.")
@click.option("--volumes", "what", flag_value="volumes", help="Print the names of the volumes alone.")
@click.option("--images", "what", flag_value="images", help="Print the names of the images alone.")
@click.option("--profiles", "what", flag_value="profiles", help="Print the names of the profiles alone.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing: only check the files.")
@_services
@click.pass_obj
def config(
    invocation: Invocation, output_format: str, what: str | None, quiet: bool, services: tuple[str, ...]
) -> None:
    """
    It is what up reads: merged, with variables replaced, and in the long forms of keys.

    \b
      minit compose config
      minit compose -f a.yaml -f b.yaml config --format=json

    """
    loaded = _load(invocation)
    chosen = loaded.chosen(services, alone=not services)
    if quiet:
        return
    if what is not None:
        lines = {
            "services": [service.name for service in chosen],
            "volumes": [name for name, _ in loaded.project.volumes],
            "images": [image_name(loaded.project, service) for service in chosen],
            "profiles": sorted({name for _, service in loaded.project.services for name in service.profiles}),
        }[what]
        invocation.say("".join(f"{line}\n" for line in lines), end="")
        return
    names = {service.name for service in chosen}
    document: dict[str, object] = {"name": loaded.project.name}
    for section, value in loaded.document.items():
        if section == "services" and isinstance(value, dict):
            document[section] = {name: each for name, each in value.items() if name in names}
        elif section not in ("name", "version"):
            document[section] = value
    if output_format == "json":
        invocation.say(json_text(document, "json-pretty"))
    else:
        invocation.say(write_documents([_plain(document)]), end="")


def _plain(value: object) -> object:
    """Return a value without the places of its parts, for the writer of YAML."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value
