"""Hooks of an app while it runs, by the annotation minit/hooks: a JSON object with a command or a sleep for each."""

from __future__ import annotations

from collections.abc import Callable

from minit.base.goduration import parse_duration
from minit.base.value import Value
from minit.manifest.annotations import Annotation
from minit.manifest.pod import RuntimeApp
from minit.manifest.reader import Node, read_json

HOOK_POST_START = "post-start"
HOOK_PRE_STOP = "pre-stop"
HOOKS = (HOOK_POST_START, HOOK_PRE_STOP)

_EXEC, _SLEEP = "exec", "sleep"
_LONGEST_SECONDS = 366 * 24 * 3600.0

# The paths of a command, and the searched path list, as in ProcessPlan.
LookUp = Callable[[str], tuple[tuple[str, ...], str | None]]


class Hook(Value):
    """
    A command that runs in an app, as the app, or with `sleep_seconds` a mere wait.

    `candidates`, `command` and `search` are as in ProcessPlan, `arguments` those after the command.
    """

    candidates: tuple[str, ...] = ()
    command: str = ""
    search: str | None = None
    arguments: tuple[str, ...] = ()
    sleep_seconds: float | None = None

    def describe(self) -> str:
        """Return the hook as words for --debug."""
        if self.sleep_seconds is not None:
            return f"sleep {self.sleep_seconds:g} s"
        return f"exec {' or '.join(self.candidates)} {list(self.arguments)}"


def plan_hooks(runtime: RuntimeApp, look_up: LookUp) -> dict[str, Hook]:
    """Return the hooks of an app by name; ManifestError for a bad annotation."""
    text = runtime.annotation(Annotation.HOOKS)
    if text is None:
        return {}
    root = read_json(text.encode(errors="surrogateescape"), f'app "{runtime.name}": annotation {Annotation.HOOKS}')
    value = root.raw()
    if not isinstance(value, dict) or not value or not set(value) <= {*HOOKS}:
        raise root.error(f"an object with {' or '.join(HOOKS)}")
    return {name: _read_hook(root[name], look_up) for name in HOOKS if name in value}


def _read_hook(node: Node, look_up: LookUp) -> Hook:
    value = node.raw()
    if not isinstance(value, dict) or len(value) != 1 or not set(value) <= {_EXEC, _SLEEP}:
        raise node.error(f"an object with {_EXEC} or {_SLEEP}")
    if _SLEEP in value:
        return Hook(sleep_seconds=_read_seconds(node[_SLEEP]))
    words = node[_EXEC].each(Node.string)
    if not (words and words[0]):
        raise node[_EXEC].error("a command and its arguments")
    candidates, search = look_up(words[0])
    return Hook(candidates=candidates, command=words[0], search=search, arguments=words[1:])


def _read_seconds(node: Node) -> float:
    expected = 'a duration such as "5s", of at most a year'
    try:
        seconds = parse_duration(node.string())
    except ValueError as error:
        raise node.error(expected) from error
    if not 0 <= seconds <= _LONGEST_SECONDS:
        raise node.error(expected)
    return seconds
