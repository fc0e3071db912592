"""
The stages of a Containerfile that an image needs, checked as far as they can be before anything is built; pure.

Variables have their values only when the configuration of the base is known, so that instructions with variables are
read again then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from minit.base.errors import ImageError, MinitError, PodError, StoreError, describe
from minit.base.processors import this_processor
from minit.base.value import Value, replace
from minit.containerfile.mounts import mount_fields
from minit.containerfile.parse import Instruction
from minit.containerfile.state import Pairs, State, advance, check_form
from minit.containerfile.words import assignments, expand

SCRATCH = "scratch"

_NAME = re.compile(r"[a-z][a-z0-9_.-]*", re.ASCII)


class Stage(Value):
    """A stage: the base, an image's name or the number of an earlier stage, and the instructions after FROM."""

    number: int
    name: str | None
    base: str | int
    opening: Instruction
    instructions: tuple[Instruction, ...]


class Plan(Value):
    """The needed stages in their order, the wanted one last; `source` is the file, for errors."""

    source: str
    stages: tuple[Stage, ...]
    arguments: Pairs
    """Arguments of the whole file."""
    unused: tuple[str, ...]
    """Names of the user's arguments that no ARG declares."""

    @property
    def steps(self) -> int:
        """The number of instructions, FROM among them."""
        return sum(1 + len(stage.instructions) for stage in self.stages)


@contextmanager
def at(source: str, instruction: Instruction) -> Iterator[None]:
    """Give an error of the with block the place of an instruction."""
    try:
        yield
    except (MinitError, OSError) as error:
        place = f"{source}:{instruction.line}: {instruction.name}"
        kind = type(error) if isinstance(error, (PodError, StoreError)) else ImageError
        raise kind(f"{place}: {describe(error)}") from error


def plan(instructions: Sequence[Instruction], source: str, given: Pairs = (), target: str | None = None) -> Plan:
    """Return what to build; ImageError with file and line for what is wrong or not supported."""
    variables = dict(platform_arguments())
    declared = set(variables)
    stages: list[Stage] = []
    inside: list[Instruction] = []
    for instruction in instructions:
        with at(source, instruction):
            if instruction.name == "FROM":
                _close(stages, inside)
                inside = []
                stages.append(_open(instruction, stages, variables))
            elif stages:
                inside.append(instruction)
            elif instruction.name == "ARG":
                for name, value in assignments(instruction.rest, variables, instruction.escape):
                    declared.add(name)
                    found = dict(given).get(name, variables.get(name) if value is None else value)
                    variables |= {} if found is None else {name: found}
            else:
                check_form(instruction)
                raise ImageError("stands before the first FROM")
            if instruction.name == "ARG" and stages:
                declared |= {name for name, _ in assignments(instruction.rest, variables, instruction.escape)}
    _close(stages, inside)
    if not stages:
        raise ImageError(f"{source}: no FROM: nothing to build")
    needed = _needed(stages, _wanted(stages, target, source))
    for stage in needed:
        _check(stage, source)
    return Plan(
        source=source,
        stages=tuple(needed),
        arguments=tuple(variables.items()),
        unused=tuple(name for name, _ in given if name not in declared and not name.lower().endswith("_proxy")),
    )


def platform_arguments() -> Pairs:
    """Return the arguments about the platform, which is always this machine's."""
    processor = this_processor()
    name, _, variant = processor.name.partition("/")
    found = {"PLATFORM": f"linux/{processor.name}", "OS": "linux", "ARCH": name, "VARIANT": variant}
    return tuple((f"{kind}{key}", value) for kind in ("TARGET", "BUILD") for key, value in found.items())


def origin_of(origin: str, stages: Sequence[Stage]) -> int | None:
    """Return the number of the stage that `--from` means, None for an image."""
    named = [stage.number for stage in stages if stage.name is not None and stage.name == origin.lower()]
    if named:
        return named[-1]
    return int(origin) if origin.isascii() and origin.isdigit() and int(origin) < len(stages) else None


def _open(instruction: Instruction, stages: Sequence[Stage], variables: dict[str, str]) -> Stage:
    check_form(instruction)
    for _, value in instruction.flags:
        _check_platform(expand(value, variables, instruction.escape))
    words = instruction.rest.split()
    if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
        raise ImageError("expected FROM IMAGE [AS NAME]")
    base: str | int = expand(words[0], variables, instruction.escape)
    if not base:
        raise ImageError(f'"{words[0]}" is empty: give the argument with --build-arg')
    name = words[2].lower() if len(words) == 3 else None
    if name is not None and not _NAME.fullmatch(name):
        raise ImageError(f'"{words[2]}" is no name of a stage')
    earlier = [stage.number for stage in stages if stage.name == str(base).lower()]
    return Stage(
        number=len(stages), name=name, base=earlier[-1] if earlier else base, opening=instruction, instructions=()
    )


def _check_platform(text: str) -> None:
    own = this_processor()
    system, _, rest = text.partition("/")
    if text and (system != "linux" or rest not in (own.name, own.architecture)):
        raise ImageError(f"--platform={text}: only images for this machine are built, linux/{own.name}")


def _close(stages: list[Stage], inside: Sequence[Instruction]) -> None:
    if stages:
        stages[-1] = replace(stages[-1], instructions=tuple(inside))


def _wanted(stages: Sequence[Stage], target: str | None, source: str) -> Stage:
    if target is None:
        return stages[-1]
    number = origin_of(target, stages)
    if number is None:
        names = ", ".join(stage.name or str(stage.number) for stage in stages)
        raise ImageError(f'{source}: no stage "{target}": there is {names}')
    return stages[number]


def _needed(stages: Sequence[Stage], wanted: Stage) -> list[Stage]:
    numbers, pending = {wanted.number}, [wanted]
    while pending:
        stage = pending.pop()
        origins = [stage.base] if isinstance(stage.base, int) else []
        for instruction in stage.instructions:
            for name, value in instruction.flags:
                origin = value if name == "from" else mount_fields(value).get("from") if name == "mount" else None
                number = None if origin is None else origin_of(origin, stages[: stage.number])
                origins += [] if number is None else [number]
        for number in set(origins) - numbers:
            numbers.add(number)
            pending.append(stages[number])
    return [stages[number] for number in sorted(numbers)]


def _check(stage: Stage, source: str) -> None:
    """Try every instruction whose words are known by now."""
    for instruction in stage.instructions:
        with at(source, instruction):
            check_form(instruction)
            values = [value for _, value in instruction.flags]
            # The rest of these is the business of a shell.
            values += [] if instruction.name in ("RUN", "CMD", "ENTRYPOINT") else [instruction.rest]
            if not any("$" in value for value in values):
                advance(State(config={}), instruction)
