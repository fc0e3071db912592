"""The project that a command line means: its files, its name, the environment, and the variables of its services."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from minit.base.errors import ManifestError, PodError, describe
from minit.base.value import Value, replace
from minit.compose.document import Sources, absolute, default_files, find_name, read_file, read_variables, with_files
from minit.compose.keys import Reading
from minit.compose.project import Project, check_project_name, in_order, normal_name, read_project
from minit.compose.tables import EnvironmentFile, Service
from minit.manifest.reader import PlacedFields
from minit.stage0.pods.appsection import Pairs

FILES_VARIABLE = "COMPOSE_FILE"
NAME_VARIABLE = "COMPOSE_PROJECT_NAME"
PROFILES_VARIABLE = "COMPOSE_PROFILES"
SEPARATOR_VARIABLE = "COMPOSE_PATH_SEPARATOR"
ENVIRONMENT_FILES_VARIABLE = "COMPOSE_ENV_FILES"

_NAMES = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
_OVERRIDES = ("compose.override.yaml", "compose.override.yml", "docker-compose.override.yaml")
_ALL = "*"


class Where(Value):
    """The words of a command line about the project."""

    files: tuple[str, ...] = ()
    name: str | None = None
    profiles: tuple[str, ...] = ()
    directory: str | None = None
    environment_files: tuple[str, ...] = ()
    scales: tuple[tuple[str, int], ...] = ()


class LoadedProject(Value):
    """A project with its document; `environment` has the variables of the caller and of `.env`."""

    project: Project
    document: PlacedFields
    directory: Path
    files: tuple[str, ...]
    environment: Mapping[str, str]
    profiles: frozenset[str]

    def variables_of(self, service: Service) -> Pairs:
        """Return the variables of a service: of files first, then its own; PodError for a missing file."""
        found: dict[str, str] = {}
        for file in service.env_file:
            found.update(self._read(file))
        for name, value in service.environment:
            known = self.environment.get(name) if value is None else value
            if known is None:
                found.pop(name, None)
            else:
                found[name] = known
        return tuple(found.items())

    def labels_of(self, service: Service) -> Pairs:
        """Return the labels of a service: of files first, then its own."""
        found: dict[str, str] = {}
        for file in service.label_file:
            found.update(self._read(file))
        return tuple({**found, **dict(service.labels)}.items())

    def _read(self, file: EnvironmentFile) -> dict[str, str]:
        if not file.required and not os.path.exists(file.path):
            return {}
        if file.format == "raw":
            lines = read_file(file.path).decode(errors="replace").splitlines()
            return dict(line.partition("=")[::2] for line in lines if "=" in line and not line.startswith("#"))
        values = read_variables(file.path, self.environment)
        return {name: value for name, value in values.items() if value is not None}

    def contents_of(self, service: Service) -> dict[str, bytes]:
        """Return the bytes of secrets and configs of a service, by `secrets/NAME` and `configs/NAME`."""
        found: dict[str, bytes] = {}
        for section, grants, sources in (
            ("secrets", service.secrets, dict(self.project.secrets)),
            ("configs", service.configs, dict(self.project.configs)),
        ):
            for grant in grants:
                source = sources[grant.source]
                where = f"{section}.{grant.source}"
                if source.content is not None:
                    found[f"{section}/{grant.source}"] = source.content.encode()
                elif source.environment is not None:
                    value = self.environment.get(source.environment)
                    if value is None:
                        raise PodError(f"{where}.environment: the variable {source.environment} is not set")
                    found[f"{section}/{grant.source}"] = value.encode()
                elif source.file is not None:
                    try:
                        found[f"{section}/{grant.source}"] = Path(source.file).read_bytes()
                    except OSError as error:
                        raise PodError(f"{where}.file: {describe(error)}") from error
        return found

    def chosen(self, names: Sequence[str], *, alone: bool = False) -> list[Service]:
        """
        Return services in the order of dependencies: those named, or those of the profiles, with their dependencies.

        PodError for a name that no service has.
        """
        services = dict(self.project.services)
        for name in names:
            if name not in services:
                raise PodError(f"there is no service {name}: the project has {', '.join(services) or 'none'}")
        wanted = set(names) or {name for name, service in services.items() if self.is_enabled(service)}
        if not alone:
            waiting = [*wanted]
            while waiting:
                for other, _ in services[waiting.pop()].depends_on:
                    if other in services and other not in wanted:
                        wanted.add(other)
                        waiting.append(other)
        return [services[name] for name in in_order(services) if name in wanted]

    def is_enabled(self, service: Service) -> bool:
        """Tell whether a service is in one of the profiles, or in none at all."""
        return not service.profiles or _ALL in self.profiles or bool(self.profiles & {*service.profiles})


def load(
    where: Where, environ: Mapping[str, str], note: Callable[[str], None], *, by_name: bool = False
) -> LoadedProject:
    """
    Return the project of a command line; every fault of its files is noted but the last, which is the error.

    With `by_name` a project with a name needs no file, and has no services then.
    """
    try:
        files, directory = _find_files(where, environ)
    except PodError:
        name = where.name or environ.get(NAME_VARIABLE)
        if not (by_name and name):
            raise
        return _without_files(check_project_name(name, "-p"))
    given = where.environment_files or tuple(filter(None, environ.get(ENVIRONMENT_FILES_VARIABLE, "").split(",")))
    environment = with_files(environ, given or default_files(directory))
    name = where.name or environment.get(NAME_VARIABLE)
    if name:
        check_project_name(name, "-p" if where.name else NAME_VARIABLE)
    else:
        found = find_name(files, environment)
        name = check_project_name(found, files[0]) if found else normal_name(directory.resolve().name)
        if not name:
            raise PodError(f"the directory {directory} gives the project no name: give one with -p")
    environment[NAME_VARIABLE] = name
    document = Sources(environment, note).read(files, directory)
    reading = Reading()
    project = read_project(document, name, reading)
    for text in dict.fromkeys(reading.notes):
        note(f"note: {text}")
    if reading.faults:
        *others, last = dict.fromkeys(reading.faults)
        for text in others:
            note(text)
        raise ManifestError(last)
    profiles = where.profiles or tuple(filter(None, environment.get(PROFILES_VARIABLE, "").split(",")))
    return LoadedProject(
        project=_scaled(project, where.scales),
        document=document,
        directory=directory,
        files=tuple(files),
        environment=environment,
        profiles=frozenset(profiles),
    )


def _without_files(name: str) -> LoadedProject:
    return LoadedProject(
        project=Project(name=name),
        document=PlacedFields(),
        directory=Path.cwd(),
        files=(),
        environment={},
        profiles=frozenset(),
    )


def _scaled(project: Project, scales: Sequence[tuple[str, int]]) -> Project:
    services = dict(project.services)
    for name, count in scales:
        if name not in services:
            raise PodError(f"--scale: there is no service {name}")
        if count > 1 and services[name].container_name is not None:
            raise PodError(f"--scale: service {name} has a container_name, which is for one pod")
        services[name] = replace(services[name], scale=count)
    return replace(project, services=tuple(services.items()))


def _find_files(where: Where, environ: Mapping[str, str]) -> tuple[list[str], Path]:
    """Return the files, and the directory of the project."""
    separator = environ.get(SEPARATOR_VARIABLE, os.pathsep)
    named = where.files or tuple(filter(None, environ.get(FILES_VARIABLE, "").split(separator)))
    if named:
        top = Path(named[0]).parent if named[0] != "-" else Path()
        return [*named], Path(absolute(where.directory or str(top), Path.cwd()))
    start = Path(absolute(where.directory or ".", Path.cwd()))
    for directory in (start,) if where.directory else (start, *start.parents):
        found = [directory / name for name in _NAMES if (directory / name).is_file()]
        if found:
            overrides = [directory / name for name in _OVERRIDES if (directory / name).is_file()]
            return [os.path.relpath(file) for file in (found[0], *overrides[:1])], directory
    raise PodError(f"there is no {', '.join(_NAMES[:2])} or docker-compose.yml in {start} or above: give one with -f")
