"""
What an instruction changes: the configuration of the image to be, and an action on the files; pure.

The configuration is the object `config` of OCI's config.md, with Docker's fields for what OCI leaves out.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence

from minit.base.errors import ImageError
from minit.base.goduration import parse_duration
from minit.base.value import Value, replace
from minit.containerfile.ignore import is_pattern
from minit.containerfile.mounts import Mount, parse_mount
from minit.containerfile.parse import HereDocument, Instruction
from minit.containerfile.words import assignments, expand, expand_lines, pairs

Pairs = tuple[tuple[str, str], ...]
Config = dict[str, object]

_DEFAULT_SHELL = ("/bin/sh", "-c")
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")
PREDEFINED = (*_PROXIES, *(name.lower() for name in _PROXIES))
"""Arguments that every RUN has if the user gives a value, declared or not."""

_OCTAL = re.compile(r"[0-7]{1,4}", re.ASCII)
_PORT = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?(?:/(tcp|udp|sctp))?", re.ASCII | re.IGNORECASE)
_PORT_LIMIT = 65535
_URL = re.compile(r"(?:https?|ftp|git|ssh)://|git@", re.IGNORECASE)
_SIGNAL = re.compile(r"(?:SIG)?[A-Z0-9+-]{1,16}", re.ASCII | re.IGNORECASE)
HOST = "host"
_NETWORKS = ("default", "none", HOST)


class Run(Value):
    """A command to run in a pod, with all variables of the image and the arguments that are declared."""

    command: tuple[str, ...]
    environment: Pairs
    user: str
    directory: str
    network: str | None = None
    mounts: tuple[Mount, ...] = ()


class Document(Value):
    """A file that a here-document makes."""

    name: str
    content: str


class Copy(Value):
    """
    Files of the context, or of `origin`, a stage or an image, to an absolute path of the image.

    A `target` with a slash at the end is a directory. `owner` is `USER[:GROUP]`; with `unpacks` archives are unpacked.
    """

    sources: tuple[str, ...]
    documents: tuple[Document, ...]
    origin: str | None
    target: str
    owner: str
    mode: int | None
    unpacks: bool


class Directories(Value):
    """Directories to make where there are none, for a user."""

    paths: tuple[str, ...]
    user: str


Action = Run | Copy | Directories


class State(Value):
    """An image on the way; `arguments` are the declared ones that have a value, `given` those of the user."""

    config: Config
    author: str = ""
    arguments: Pairs = ()
    given: Pairs = ()
    defaults: Pairs = ()
    """Arguments of the whole file."""
    has_command: bool = False
    """Whether the Containerfile itself has said CMD."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the image."""
        texts = (text.partition("=") for text in _strings(self.config.get("Env")))
        return {name: value for name, _, value in texts}

    @property
    def variables(self) -> dict[str, str]:
        """All that an instruction may name: variables go before arguments."""
        return dict(self.arguments) | self.environment

    @property
    def directory(self) -> str:
        """The working directory."""
        return str(self.config.get("WorkingDir") or "/")

    @property
    def user(self) -> str:
        """The user of RUN, `USER[:GROUP]`, empty for root."""
        return str(self.config.get("User") or "")

    @property
    def shell(self) -> tuple[str, ...]:
        """The words before a command line."""
        return tuple(_strings(self.config.get("Shell"))) or _DEFAULT_SHELL

    def joined(self, field: str, members: Mapping[str, object]) -> State:
        """Return the state with more members of an object of the configuration."""
        old = self.config.get(field)
        return self.changed(**{field: {**(old if isinstance(old, dict) else {}), **members}})

    def path(self, text: str) -> str:
        """Return the absolute path of a path that may be relative to the working directory."""
        return "/" + posixpath.normpath(posixpath.join(self.directory, text)).lstrip("/")

    def changed(self, **fields: object) -> State:
        """Return the state with other fields of the configuration; None takes a field away."""
        config = {key: value for key, value in {**self.config, **fields}.items() if value is not None}
        return replace(self, config=config)


def advance(state: State, instruction: Instruction) -> tuple[State, Action | None]:
    """Return the state after an instruction, and what to do; ImageError for a wrong or an unknown instruction."""
    check_form(instruction)
    return _INSTRUCTIONS[instruction.name](state, instruction)


def check_form(instruction: Instruction) -> None:
    """Raise ImageError for an unknown instruction or option, or nothing where something has to be."""
    if instruction.name not in (*_INSTRUCTIONS, "FROM"):
        raise ImageError("unknown instruction")
    if not instruction.rest and instruction.name not in _MAY_BE_EMPTY:
        raise ImageError("needs an argument")
    for name, _ in instruction.flags:
        if name not in FLAGS.get(instruction.name, ()):
            raise ImageError(f"--{name} is not supported")


def _arg(state: State, instruction: Instruction) -> tuple[State, None]:
    arguments = dict(state.arguments)
    for name, default in assignments(instruction.rest, state.variables, instruction.escape):
        value = dict(state.given).get(name, dict(state.defaults).get(name) if default is None else default)
        if value is not None:
            arguments[name] = value
    return replace(state, arguments=tuple(arguments.items())), None


def _env(state: State, instruction: Instruction) -> tuple[State, None]:
    environment = {**state.environment, **_pairs(state, instruction)}
    return state.changed(Env=[f"{name}={value}" for name, value in environment.items()]), None


def _label(state: State, instruction: Instruction) -> tuple[State, None]:
    return state.joined("Labels", _pairs(state, instruction)), None


def _pairs(state: State, instruction: Instruction) -> dict[str, str]:
    return dict(pairs(instruction.rest, state.variables, instruction.escape))


def _workdir(state: State, instruction: Instruction) -> tuple[State, Action]:
    path = state.path(_word(state, instruction, instruction.rest))
    return state.changed(WorkingDir=path), Directories(paths=(path,), user=state.user)


def _user(state: State, instruction: Instruction) -> tuple[State, None]:
    user = _word(state, instruction, instruction.rest)
    if not user:
        raise ImageError("no user")
    return state.changed(User=user), None


def _run(state: State, instruction: Instruction) -> tuple[State, Action]:
    words = instruction.words()
    command = (*state.shell, _script(instruction)) if words is None else words
    if not command:
        raise ImageError("no command")
    chosen = dict(state.given)
    proxies = {name: chosen[name] for name in PREDEFINED if name in chosen}
    environment = {**proxies, **dict(state.arguments), **state.environment}
    network = next((value for name, value in instruction.flags if name == "network"), None)
    if network is not None and network not in _NETWORKS:
        raise ImageError(f"--network={network}: expected one of {', '.join(_NETWORKS)}")
    mounts = tuple(
        _mount(_word(state, instruction, value), state) for name, value in instruction.flags if name == "mount"
    )
    return state, Run(
        command=command,
        environment=tuple(environment.items()),
        user=state.user,
        directory=state.directory,
        network=network,
        mounts=mounts,
    )


def _script(instruction: Instruction) -> str:
    """Return what the shell gets: the command line, with the here-documents behind, or the one here-document alone."""
    documents = instruction.documents
    if len(documents) == 1 and instruction.rest == documents[0].word:
        content = documents[0].content
        if content.startswith("#!"):
            raise ImageError(
                "a here-document with an own interpreter (#!) is not supported: name the interpreter,"
                " as in RUN python3 <<EOF"
            )
        return content
    return "\n".join([instruction.rest, *(f"{document.content}{document.name}" for document in documents)])


def _mount(text: str, state: State) -> Mount:
    mount = parse_mount(text)
    target = state.path(mount.target)
    return replace(mount, target=target, identity=mount.identity or target)


def _copy(state: State, instruction: Instruction) -> tuple[State, Action]:
    flags = {name: _word(state, instruction, value) for name, value in instruction.flags}
    documents = {document.word: document for document in instruction.documents}
    words = list(instruction.arguments())
    if len(words) < 2:
        raise ImageError("expected at least one source, and a destination")
    sources, made = [], []
    for word in words[:-1]:
        if word in documents:
            made.append(_document(state, instruction, documents[word]))
            continue
        source = _word(state, instruction, word)
        if not source:
            raise ImageError(f'the source "{word}" is empty')
        if _URL.match(source) and instruction.name == "ADD":
            raise ImageError(f"{source}: minit downloads nothing: fetch the file before, and copy it from the context")
        sources.append(source)
    target = _word(state, instruction, words[-1])
    if not target:
        raise ImageError("the destination is empty")
    is_directory = target.endswith(("/", "/.")) or target in (".", "..")
    target = state.path(target)
    certain = [source for source in sources if not is_pattern(source)]
    if len(certain) + len(made) > 1 and not is_directory:
        raise ImageError("with several sources the destination is a directory, and ends with a slash")
    mode = flags.get("chmod")
    if mode is not None and not _OCTAL.fullmatch(mode):
        raise ImageError(f"--chmod={mode}: expected an octal number, as 0755")
    return state, Copy(
        sources=tuple(sources),
        documents=tuple(made),
        origin=flags.get("from"),
        target=target if target == "/" or not is_directory else f"{target}/",
        owner=flags.get("chown", ""),
        mode=None if mode is None else int(mode, 8),
        unpacks=instruction.name == "ADD",
    )


def _document(state: State, instruction: Instruction, document: HereDocument) -> Document:
    if "/" in document.name or document.name in (".", ".."):
        raise ImageError(f'the here-document "{document.name}" is no name of a file')
    content = document.content
    if document.expands:
        content = expand_lines(content, state.variables, instruction.escape)
    return Document(name=document.name, content=content)


def _command(state: State, instruction: Instruction) -> tuple[State, None]:
    return replace(state.changed(Cmd=list(_started(state, instruction))), has_command=True), None


def _entrypoint(state: State, instruction: Instruction) -> tuple[State, None]:
    changed = state.changed(Entrypoint=list(_started(state, instruction)))
    # The command of the base was for another program.
    return changed if state.has_command else changed.changed(Cmd=None), None


def _started(state: State, instruction: Instruction) -> tuple[str, ...]:
    words = instruction.words()
    if words is not None or not instruction.rest:
        return words or ()
    return (*state.shell, instruction.rest)


def _expose(state: State, instruction: Instruction) -> tuple[State, None]:
    ports: dict[str, object] = {}
    for word in _word(state, instruction, instruction.rest).split():
        match = _PORT.fullmatch(word)
        first = int(match[1]) if match else 0
        last = int(match[2] or first) if match else 0
        if match is None or not 0 < first <= last <= _PORT_LIMIT:
            raise ImageError(f'expected PORT or PORT/PROTOCOL, got "{word}"')
        for port in range(first, last + 1):
            ports[f"{port}/{(match[3] or 'tcp').lower()}"] = {}
    return state.joined("ExposedPorts", ports), None


def _volume(state: State, instruction: Instruction) -> tuple[State, Action]:
    paths = tuple(_word(state, instruction, word) for word in instruction.arguments())
    if not all(paths):
        raise ImageError("a volume without a path")
    return state.joined("Volumes", {path: {} for path in paths}), Directories(paths=paths, user="")


def _shell(state: State, instruction: Instruction) -> tuple[State, None]:
    words = instruction.words()
    if not words:
        raise ImageError('expected a list, as SHELL ["/bin/bash", "-c"]')
    return state.changed(Shell=list(words)), None


def _stop_signal(state: State, instruction: Instruction) -> tuple[State, None]:
    name = _word(state, instruction, instruction.rest)
    if not _SIGNAL.fullmatch(name):
        raise ImageError(f'"{name}" is no signal')
    return state.changed(StopSignal=name), None


def _maintainer(state: State, instruction: Instruction) -> tuple[State, None]:
    return replace(state, author=instruction.rest), None


def _onbuild(state: State, instruction: Instruction) -> tuple[State, None]:
    if instruction.documents:
        raise ImageError("a here-document in ONBUILD is not supported")
    if instruction.rest.split()[0].upper() in ("ONBUILD", "FROM", "MAINTAINER"):
        raise ImageError(f"{instruction.rest.split()[0].upper()} in ONBUILD means nothing")
    return state.changed(OnBuild=[*_strings(state.config.get("OnBuild")), instruction.rest]), None


def _healthcheck(state: State, instruction: Instruction) -> tuple[State, None]:
    kind, *rest = instruction.rest.split(maxsplit=1)
    if kind.upper() == "NONE":
        return state.changed(Healthcheck={"Test": ["NONE"]}), None
    if kind.upper() != "CMD" or not rest:
        raise ImageError("expected NONE or CMD COMMAND")
    command = replace(instruction, rest=rest[0])
    words = command.words()
    check: Config = {"Test": ["CMD-SHELL", rest[0]] if words is None else ["CMD", *words]}
    for name, value in instruction.flags:
        if name == "retries":
            if not (value.isascii() and value.isdigit()):
                raise ImageError(f"--retries={value}: expected a number")
            check["Retries"] = int(value)
            continue
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            raise ImageError(f"--{name}={value}: expected a duration, as 30s") from error
        check[_DURATIONS[name]] = round(seconds * 1e9)
    return state.changed(Healthcheck=check), None


def _word(state: State, instruction: Instruction, text: str) -> str:
    return expand(text, state.variables, instruction.escape)


def _strings(value: object) -> Sequence[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


_DURATIONS = {
    "interval": "Interval",
    "timeout": "Timeout",
    "start-period": "StartPeriod",
    "start-interval": "StartInterval",
}
_MAY_BE_EMPTY = ("CMD", "ENTRYPOINT")
FLAGS: Mapping[str, tuple[str, ...]] = {
    "FROM": ("platform",),
    "RUN": ("network", "mount"),
    "COPY": ("from", "chown", "chmod", "link"),
    "ADD": ("chown", "chmod", "link"),
    "HEALTHCHECK": (*_DURATIONS, "retries"),
}
"""Options of instructions; `link` is about the builder's cache alone."""
_INSTRUCTIONS: Mapping[str, Callable[[State, Instruction], tuple[State, Action | None]]] = {
    "ADD": _copy,
    "ARG": _arg,
    "CMD": _command,
    "COPY": _copy,
    "ENTRYPOINT": _entrypoint,
    "ENV": _env,
    "EXPOSE": _expose,
    "HEALTHCHECK": _healthcheck,
    "LABEL": _label,
    "MAINTAINER": _maintainer,
    "ONBUILD": _onbuild,
    "RUN": _run,
    "SHELL": _shell,
    "STOPSIGNAL": _stop_signal,
    "USER": _user,
    "VOLUME": _volume,
    "WORKDIR": _workdir,
}
