"""
What `up` does: images, networks, volumes and pods of a project are made as the file says.

The state of a project is in its pods: labels have the project, the service, the number, and a hash of all that the pod
was made of. Nothing else is written down.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from minit.base.errors import MinitError, PodError, describe
from minit.base.progress import Progress
from minit.base.value import Value, replace
from minit.compose.loading import LoadedProject
from minit.compose.project import Project
from minit.compose.projectpods import (
    ProjectPod,
    Tell,
    find_pods,
    remove_pod,
    require_check,
    start_pod,
    stop_pods,
    wait_until_completed,
    wait_until_healthy,
)
from minit.compose.tables import NETWORKS_OF_IMAGE, Build, PublishedPort, Service
from minit.compose.translate import (
    DEPENDS_LABEL,
    DIRECTORY_LABEL,
    FILES_LABEL,
    HASH_LABEL,
    IMAGE_LABEL,
    NUMBER_LABEL,
    ONE_OFF_LABEL,
    PROJECT_LABEL,
    SERVICE_LABEL,
    Unit,
    configuration_hash,
    network_keys,
    network_name,
    network_request,
    pod_request,
    run_options,
    volume_name,
)
from minit.containerfile.build import ImageBuild, build
from minit.kubernetes.volumes import write_volume_files
from minit.manifest.pod import Volume
from minit.pods import preparing, running
from minit.pods.caller import Caller
from minit.pods.ending import cleanup_of, take_down
from minit.pods.images import remove_all
from minit.pods.networks import create_network, remove_network
from minit.pods.requests import AppRequest, Stage1Request, StartRequest
from minit.stage0.garbage.storegc import remove_volume
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import PullPolicy, StoredImage
from minit.stage0.images.treestore import IMAGE
from minit.stage0.networks import list_networks
from minit.stage0.pods.appsection import Pairs
from minit.stage0.pods.poddirectory import (
    PodState,
    name_pod,
    uuid_of_name,
)
from minit.stage0.start.newpod import discarded_on_failure
from minit.stage0.volumes import create_volume, list_volumes

_RANDOM_BYTES = 6

Show = Callable[[], AbstractContextManager[Progress]]
"""Shows progress for the length of a with block."""


@contextmanager
def _failing_as(service: Service) -> Iterator[None]:
    """Put the service before the reason of a failure."""
    try:
        yield
    except MinitError as error:
        raise PodError(f"service {service.name}: {describe(error)}") from error


class Images(Value):
    """When images are fetched (`pull`, None as the services say) and built."""

    pull: str | None = None
    builds: bool = False
    never_builds: bool = False


class OneOff(Value):
    """
    What a pod of `run` has beside the service's, or in place: the words of the command, variables, and further ports.

    Without `has_service_ports` the ports of the service are not published.
    """

    command: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] | None = None
    environment: Pairs = ()
    user: tuple[str, str | None] | None = None
    working_directory: str | None = None
    name: str | None = None
    has_service_ports: bool = False
    is_detached: bool = False
    is_removed: bool = False
    is_interactive: bool = False


class UpRequest(Value):
    """How `up` is done; `timeout_seconds` is for the end of replaced pods, None for their own grace periods."""

    services: tuple[str, ...] = ()
    images: Images = Images()
    recreates: bool = False
    never_recreates: bool = False
    without_dependencies: bool = False
    removes_orphans: bool = False
    stage1: Stage1Request = Stage1Request()
    waits: bool = False
    wait_seconds: float = math.inf
    timeout_seconds: float | None = None


class Up:
    """One `up` of a project: pods that are as wanted stay, others are made anew; after a failure the new ones go."""

    def __init__(self, caller: Caller, loaded: LoadedProject, request: UpRequest, show: Show, tell: Tell) -> None:
        self._caller = caller
        self._loaded = loaded
        self._request = request
        self._show = show
        self._tell = tell
        self._made: list[str] = []
        self._remade: set[str] = set()
        self._made_volumes: list[str] = []
        self._made_networks: list[str] = []
        self._images: dict[str, StoredImage] = {}
        self._before: list[ProjectPod] = []

    def run(self) -> list[ProjectPod]:
        """Return the pods of the chosen services, which run; MinitError after a failure."""
        loaded, caller = self._loaded, self._caller
        services = loaded.chosen(self._request.services, alone=self._request.without_dependencies)
        if not services:
            raise PodError("no service is chosen: all are in profiles (--profile)")
        self._before = find_pods(caller, loaded.project.name)
        self._look_at_orphans()
        with Store(caller.data) as store:
            for service in services:
                self._images[service.name] = self._image_of(store, service)
            for service in services:
                _prepare_paths(service)
            try:
                self._make_networks(services)
                self._make_volumes(services)
                for service in services:
                    with _failing_as(service):
                        self._up_service(store, service, {each.name for each in services})
                if self._request.waits:
                    self._wait_for_all(services)
            except BaseException:
                self._take_back(store)
                raise
        names = {service.name for service in services}
        return [pod for pod in find_pods(caller, loaded.project.name) if pod.service in names]

    def run_once(self, name: str, once: OneOff) -> str:
        """
        Run a command as a pod of a service, after the services that the service depends on, and return the UUID.

        Unless the pod is for the background, this process becomes the pod's stage1.
        """
        loaded = self._loaded
        service = loaded.chosen((name,), alone=True)[0]
        needed = tuple(each.name for each in loaded.chosen((name,)) if each.name != name)
        if needed and not self._request.without_dependencies:
            # What runs then is not for this pod's failure to take back.
            Up(self._caller, loaded, replace(self._request, services=needed), self._show, self._tell).run()
        chosen = f"{loaded.project.name}-{name}-run-{os.urandom(_RANDOM_BYTES).hex()}"
        service = replace(
            service,
            command=once.command or service.command,
            entrypoint=once.entrypoint or service.entrypoint,
            environment=tuple({**dict(service.environment), **dict(once.environment)}.items()),
            user=once.user or service.user,
            working_dir=once.working_directory or service.working_dir,
            ports=service.ports if once.has_service_ports else (),
            container_name=once.name or chosen,
            restart=None,
            deploy=replace(service.deploy, restart_policy=None),
        )
        with Store(self._caller.data) as store, _failing_as(service):
            self._images[name] = self._image_of(store, service)
            _prepare_paths(service)
            try:
                self._make_networks((service,))
                self._make_volumes((service,))
                if not self._request.without_dependencies:
                    self._wait_for_dependencies(service, {*needed})
                return self._make(store, service, 1, None, once)
            except BaseException:
                self._take_back(store)
                raise

    def _look_at_orphans(self) -> None:
        known = {name for name, _ in self._loaded.project.services}
        orphans = [pod for pod in self._before if pod.service not in known]
        if not orphans:
            return
        if self._request.removes_orphans:
            for pod in orphans:
                remove_pod(self._caller, pod, self._request.timeout_seconds, self._tell)
            return
        names = ", ".join(pod.shown for pod in orphans)
        self._caller.note(f"warning: pods of services that the project has no more: {names} (--remove-orphans)")

    def _image_of(self, store: Store, service: Service) -> StoredImage:
        with self._show() as progress:
            return image_of(self._caller, store, self._loaded, service, self._request.images, progress)

    def _make_networks(self, services: Sequence[Service]) -> None:
        project = self._loaded.project
        names = {network.name for network in list_networks(self._caller.local_config, self._caller.note)}
        for key in dict.fromkeys(key for service in services for key in network_keys(service)):
            name = network_name(project, key)
            network = dict(project.networks).get(key)
            if name in names or (network is not None and network.external and name in NETWORKS_OF_IMAGE):
                continue
            if network is not None and network.external:
                raise PodError(f'networks.{key}: there is no network "{name}": minit network create {name}')
            create_network(self._caller, network_request(project, key))
            self._made_networks.append(name)
            self._tell(f"Network {name}  Created")

    def _make_volumes(self, services: Sequence[Service]) -> None:
        project = self._loaded.project
        names = {volume.name for volume in list_volumes(self._caller.data)}
        for service in services:
            for storage in service.volumes:
                if storage.type != "volume" or storage.source is None:
                    continue
                name = volume_name(project, storage.source)
                if name in names:
                    continue
                if dict(project.volumes)[storage.source].external:
                    raise PodError(f'volumes.{storage.source}: there is no volume "{name}": minit volume create {name}')
                if create_volume(self._caller.data, name):
                    self._made_volumes.append(name)
                names.add(name)
                self._tell(f"Volume {name}  Created")

    def _up_service(self, store: Store, service: Service, chosen: set[str]) -> None:
        present = [pod for pod in self._before if pod.service == service.name]
        wanted = range(1, service.replicas + 1)
        for pod in present:
            if pod.number not in wanted or any(
                other.number == pod.number and other.uuid < pod.uuid for other in present
            ):
                remove_pod(self._caller, pod, self._request.timeout_seconds, self._tell)
        present = [pod for pod in present if pod.number in wanted]
        environment = self._loaded.variables_of(service)
        contents = self._loaded.contents_of(service)
        state = configuration_hash(self._loaded.project, service, environment, contents)
        is_first = True
        for number in wanted:
            old = next((pod for pod in present if pod.number == number), None)
            is_current = old is not None and self._is_current(old, service, state)
            if old is not None and is_current and old.state is PodState.RUNNING:
                if not self._follows(service):
                    self._tell(f"Pod {old.shown}  Running")
                    continue
                stop_pods(self._caller, [old], self._request.timeout_seconds, self._tell)
            if is_first:
                self._wait_for_dependencies(service, chosen)
                is_first = False
            if old is not None and is_current:
                start_pod(self._caller, store, old, self._tell)
                continue
            self._make(store, service, number, old)

    def _follows(self, service: Service) -> bool:
        """Tell whether a service is to be restarted with another one that was made anew."""
        return any(dependency.restart and name in self._remade for name, dependency in service.depends_on)

    def _is_current(self, pod: ProjectPod, service: Service, state: str) -> bool:
        if self._request.never_recreates:
            return True
        same = pod.labels.get(HASH_LABEL) == state and pod.labels.get(IMAGE_LABEL) == self._images[service.name].id
        return same and not self._request.recreates

    def _make(
        self,
        store: Store,
        service: Service,
        number: int,
        old: ProjectPod | None,
        once: OneOff | None = None,
    ) -> str:
        """
        Make a pod, start it, and return the UUID; the old pod goes only when the new one is whole.

        A pod that runs `once` may be for the foreground.
        """
        caller, loaded = self._caller, self._loaded
        environment, contents = loaded.variables_of(service), loaded.contents_of(service)
        state = configuration_hash(loaded.project, service, environment, contents)
        image = self._images[service.name]
        unit = Unit(
            project=loaded.project,
            service=service,
            number=number,
            image=image,
            environment=environment,
            labels=_labels(loaded, service, number, image, state, is_one_off=once is not None),
            ports=_chosen_ports(service, number, old),
            contents=contents,
        )
        options = running.options_for(caller, run_options(unit))
        if once is not None:
            options = replace(options, interactive=once.is_interactive)
        request, volumes = pod_request(unit)
        with self._show() as progress:
            given = tuple(self._with_image(store, volume, progress) for volume in request.volumes)
            request = replace(request, volumes=given, name=None, stage1=self._request.stage1)
            pod = preparing.prepare(caller, store, request, progress)
        uuid = pod.uuid
        with discarded_on_failure(pod):
            write_volume_files(pod, volumes)
            if old is not None:
                remove_pod(caller, old, self._request.timeout_seconds, None)
                self._remade.add(service.name)
            taken = uuid_of_name(caller.data, unit.name)
            if taken is not None:
                raise PodError(f'the name "{unit.name}" is that of pod {taken}, which is none of the service')
            name_pod(pod, unit.name)
        self._made.append(uuid)
        how = StartRequest(options=options, is_detached=True, waits_for_checks=False)
        if once is not None:
            how = replace(how, is_detached=once.is_detached, is_removed=once.is_removed)
        running.start(caller, store, pod, how)
        if once is None:
            self._tell(f"Pod {unit.name}  {'Recreated' if old is not None else 'Started'}")
        return uuid

    def _with_image(self, store: Store, volume: Volume, progress: Progress) -> Volume:
        """Return a volume whose image is in the store."""
        if volume.kind != IMAGE:
            return volume
        request = AppRequest(reference=volume.source or "")
        return replace(volume, source=preparing.find_image_or_fetch(self._caller, store, request, progress).id)

    def _wait_for_dependencies(self, service: Service, chosen: set[str]) -> None:
        for name, dependency in service.depends_on:
            if name not in dict(self._loaded.project.services):
                continue
            if self._request.without_dependencies and name not in chosen:
                continue
            try:
                self._wait_for(name, dependency.condition)
            except MinitError as error:
                if dependency.required:
                    raise PodError(f"waits for {name}: {describe(error)}") from error
                self._caller.note(f"warning: {name}: {describe(error)}")

    def _wait_for(self, name: str, condition: str) -> None:
        for pod in find_pods(self._caller, self._loaded.project.name):
            if pod.service != name:
                continue
            if condition == "service_healthy":
                require_check(self._caller, pod)
                wait_until_healthy(self._caller, pod, math.inf)
            elif condition == "service_completed_successfully":
                wait_until_completed(self._caller, pod)

    def _wait_for_all(self, services: Sequence[Service]) -> None:
        deadline = time.monotonic() + self._request.wait_seconds
        names = {service.name for service in services}
        for pod in find_pods(self._caller, self._loaded.project.name):
            if pod.service in names:
                wait_until_healthy(self._caller, pod, deadline - time.monotonic())
                self._tell(f"Pod {pod.shown}  Healthy")

    def _take_back(self, store: Store) -> None:
        """Remove what was made, the last first."""
        with cleanup_of(self._caller, store) as cleanup:
            for uuid in reversed(self._made):
                with suppress(MinitError, OSError):
                    take_down(self._caller.data, uuid, math.inf, cleanup, self._caller.note)
        for name in self._made_volumes:
            with suppress(MinitError, OSError):
                remove_volume(self._caller.data, name, self._caller.note)
        for name in self._made_networks:
            with suppress(MinitError, OSError):
                remove_network(self._caller, name)


def image_of(
    caller: Caller, store: Store, loaded: LoadedProject, service: Service, how: Images, progress: Progress
) -> StoredImage:
    """Return the image of a service, built or fetched where the request or the policy says so, or if missing."""
    policy = how.pull or service.pull_policy or ""
    name = image_name(loaded.project, service)
    if service.build is not None and (how.builds or policy == "build" or not _is_there(store, name)):
        if how.never_builds:
            raise PodError(f"service {service.name}: there is no image {name}, and --no-build")
        return _build(caller, store, loaded, service, service.build, name, progress)
    if service.build is not None:
        return store.find(name)
    chosen = {"always": PullPolicy.UPDATE, "never": PullPolicy.NEVER}.get(policy)
    request = AppRequest(reference=name, pull_policy=chosen or PullPolicy.NEW, processor=service.platform)
    return preparing.find_image_or_fetch(caller, store, request, progress)


def image_name(project: Project, service: Service) -> str:
    """Return the name of a service's image, which is the project's own if the image is built without a name."""
    return service.image or f"{project.name}-{service.name}"


def _is_there(store: Store, name: str) -> bool:
    try:
        store.find(name)
    except MinitError:
        return False
    return True


def _build(
    caller: Caller, store: Store, loaded: LoadedProject, service: Service, wanted: Build, name: str, progress: Progress
) -> StoredImage:
    arguments = [(key, loaded.environment.get(key) if value is None else value) for key, value in wanted.args]
    file = None if wanted.dockerfile is None else Path(wanted.context, wanted.dockerfile)
    request = ImageBuild(
        context=Path(wanted.context),
        file=file,
        text=wanted.dockerfile_inline,
        tags=(name, *wanted.tags),
        arguments=tuple((key, value) for key, value in arguments if value is not None),
        target=wanted.target,
        labels=wanted.labels,
        networks=() if wanted.network in (None, "default") else (wanted.network,),
        uses_cache=not wanted.no_cache,
        pull_policy=PullPolicy.UPDATE if wanted.pull else PullPolicy.NEW,
    )
    return store.find(build(caller, store, request, progress))


def _labels(
    loaded: LoadedProject, service: Service, number: int, image: StoredImage, state: str, *, is_one_off: bool
) -> Pairs:
    depends = [
        f"{name}:{dependency.condition}:{str(dependency.restart).lower()}" for name, dependency in service.depends_on
    ]
    own = {
        PROJECT_LABEL: loaded.project.name,
        SERVICE_LABEL: service.name,
        NUMBER_LABEL: str(number),
        HASH_LABEL: state,
        IMAGE_LABEL: image.id,
        DEPENDS_LABEL: ",".join(depends),
        DIRECTORY_LABEL: str(loaded.directory),
        FILES_LABEL: ",".join(os.path.abspath(file) for file in loaded.files),
        ONE_OFF_LABEL: str(is_one_off),
    }
    return tuple({**dict(loaded.labels_of(service)), **own}.items())


def _prepare_paths(service: Service) -> None:
    """Make the directories of the host that a service mounts, where it may; PodError for a missing path."""
    for storage in service.volumes:
        if storage.type != "bind" or storage.source is None or os.path.exists(storage.source):
            continue
        if not storage.bind.create_host_path:
            raise PodError(f"services.{service.name}.volumes: there is no {storage.source}")
        try:
            os.makedirs(storage.source, 0o755)
        except OSError as error:
            raise PodError(f"services.{service.name}.volumes: {describe(error)}") from error


def _chosen_ports(service: Service, number: int, old: ProjectPod | None) -> tuple[tuple[PublishedPort, int], ...]:
    """Return the ports of a service with those of the host: of a range the first that is free, else any."""
    kept = (
        {}
        if old is None
        else {
            (each.pod_port.port, each.pod_port.protocol): each.host_port
            for each in old.ports
            if each.pod_port is not None
        }
    )
    taken: set[tuple[int, str]] = set()
    chosen = []
    for port in service.ports:
        first, _, last = (port.published or "").partition("-")
        choices: Iterable[int] = range(int(first), int(last or first) + 1) if first else ()
        if first and not last:
            host: int | None = int(first)
        elif (kept_port := kept.get((port.target, port.protocol))) is not None and (not first or kept_port in choices):
            host = kept_port
        elif first:
            host = next((each for each in choices if (each, port.protocol) not in taken and _is_free(port, each)), None)
        else:
            host = _free_port(port)
        if host is None:
            raise PodError(f"services.{service.name}.ports: no port of {port.published} is free")
        taken.add((host, port.protocol))
        chosen.append((port, host))
    return tuple(chosen)


def _is_free(port: PublishedPort, number: int) -> bool:
    try:
        _bind(port, number).close()
    except OSError:
        return False
    return True


def _free_port(port: PublishedPort) -> int:
    with _bind(port, 0) as bound:
        number: int = bound.getsockname()[1]
        return number


def _bind(port: PublishedPort, number: int) -> socket.socket:
    address = port.host_ip or "0.0.0.0"
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kind = socket.SOCK_STREAM if port.protocol == "tcp" else socket.SOCK_DGRAM
    bound = socket.socket(family, kind)
    try:
        bound.bind((address, number))
    except BaseException:
        bound.close()
        raise
    return bound


def remove_images(caller: Caller, names: Sequence[str], tell: Tell) -> None:
    """Remove images by their names; a missing image is none to remove."""
    with Store(caller.data) as store:
        for name in dict.fromkeys(names):
            if _is_there(store, name):
                remove_all(caller, store, (store.find(name).id,))
                tell(f"Image {name}  Removed")
