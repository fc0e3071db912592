"""Flag parsing in the manner of Go's `flag` package, for which stage0 builds the arguments of the entrypoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minit.base.errors import UsageError

# Of strconv.ParseBool.
BOOLEANS = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}

Default = bool | str


def parse_flags(
    arguments: Sequence[str], defaults: Mapping[str, Default], repeated: Sequence[str] = ()
) -> tuple[dict[str, Default], list[str]]:
    """
    Return the flags' values and the words after the flags.

    `defaults` names every flag; a bool default makes it a boolean, which never takes the next word. The last of
    several uses wins, except that the uses of a flag in `repeated` are joined by commas. UsageError names the flag.
    """
    given, rest = given_flags(arguments, defaults, repeated)
    return {**defaults, **given}, rest


def given_flags(
    arguments: Sequence[str], defaults: Mapping[str, Default], repeated: Sequence[str] = ()
) -> tuple[dict[str, Default], list[str]]:
    """Return the values of the given flags, and the words after the flags; otherwise as `parse_flags`."""
    given: dict[str, Default] = {}
    rest = list(arguments)
    while rest:
        word = rest[0]
        if len(word) < 2 or word[0] != "-":
            break
        rest.pop(0)
        if word == "--":
            break
        name, has_value, text = word[2 if word.startswith("--") else 1 :].partition("=")
        if not name or name[0] in "-=":
            raise UsageError(f"bad flag syntax: {word}")
        if name not in defaults:
            raise UsageError(f"flag provided but not defined: -{name}")
        is_boolean = isinstance(defaults[name], bool)
        value = take_value(f"-{name}", text if has_value else None, rest, is_boolean=is_boolean)
        given[name] = f"{given[name]},{value}" if name in repeated and name in given else value
    return given, rest


def take_value(flag: str, text: str | None, rest: list[str], *, is_boolean: bool) -> Default:
    """
    Return the value of a flag by `text`, which follows the `=`.

    With a `text` of None a boolean is true, any other flag takes the first word off `rest`. UsageError names `flag`.
    """
    if is_boolean:
        value = True if text is None else BOOLEANS.get(text)
        if value is None:
            raise UsageError(f'invalid boolean value "{text}" for {flag}')
        return value
    if text is not None:
        return text
    if not rest:
        raise UsageError(f"flag needs an argument: {flag}")
    return rest.pop(0)


def usage(program: str, operands: str, defaults: Mapping[str, Default]) -> str:
    """Return the text for stderr, beside exit status 2."""
    lines = [f"Usage of {program}: [flags] {operands}".rstrip()]
    for name in sorted(defaults):
        default = defaults[name]
        lines.append(f"  -{name}" if isinstance(default, bool) else f"  -{name} string")
        if default:
            lines[-1] += f' (default "{default}")' if isinstance(default, str) else " (default true)"
    return "\n".join(lines)
