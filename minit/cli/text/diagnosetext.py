"""The report of `minit diagnose` as text, harmless for a terminal whatever a pod wrote. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from minit.harmless import harmless

_TITLES = {
    "conclusions": "Conclusions",
    "pod": "Pod",
    "apps": "Apps",
    "networks": "Networks",
    "control_groups": "Control groups and limits",
    "processes": "Processes",
    "events": "Last events",
    "supervisor_log": "Log of the supervisor",
    "plan": "Plan of stage1",
    "mounts": "Mounts",
    "manifest": "Manifest",
    "machine": "Machine",
}
_INDENT = "  "
_NOTHING = "-"


def report_text(report: dict[str, object]) -> str:
    """Return a report as lines with headings, the conclusions first."""
    lines: list[str] = []
    for part, title in _TITLES.items():
        lines += [*([""] if lines else []), title.upper(), *(f"{_INDENT}{line}" for line in _lines(report.get(part)))]
    return "".join(f"{harmless(line)}\n" for line in lines)


def _lines(value: object) -> Iterator[str]:
    if value is None or value in ([], {}):
        yield _NOTHING
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _named(str(name), item)
    elif isinstance(value, list):
        for item in value:
            yield from _item(item)
    else:
        yield _text(value)


def _named(name: str, value: object) -> Iterator[str]:
    inner = list(_lines(value))
    if len(inner) == 1 and not isinstance(value, (dict, list)):
        yield f"{name}: {inner[0]}"
    elif not value:
        yield f"{name}: {_NOTHING}"
    else:
        yield f"{name}:"
        yield from (f"{_INDENT}{line}" for line in inner)


def _item(value: object) -> Iterator[str]:
    """Yield an element of a list; objects are set apart by a dash."""
    inner = list(_lines(value))
    if isinstance(value, (dict, list)):
        yield f"- {inner[0]}"
        yield from (f"{_INDENT}{line}" for line in inner[1:])
    else:
        yield from inner


def _text(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
