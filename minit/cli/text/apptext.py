"""Apps as `app list` and `app status` show them: rkt's text, byte for byte. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from minit.cli.text.columns import align
from minit.cli.text.times import format_exact_time
from minit.harmless import harmless
from minit.stage0.pods.podstatus import AppStatus

_LEGEND = ("NAME", "STATE")


def app_list_text(apps: Sequence[AppStatus], *, legend: bool) -> str:
    """Return the table of `app list`."""
    rows = [_LEGEND] if legend else []
    return align([*rows, *((app.name, app.state) for app in apps)])


def app_status_text(app: AppStatus) -> str:
    """Return the lines of `app status`."""
    lines = [f"name={app.name}", f"state={app.state}", f"image_id={app.image_id or ''}"]
    times = (("created_at", app.created_ns), ("started_at", app.started_ns), ("finished_at", app.finished_ns))
    lines += [f"{name}={format_exact_time(time_ns)}" for name, time_ns in times if time_ns is not None]
    if app.exit_code is not None:
        lines.append(f"exit_code={app.exit_code}")
    mounts = [
        f"{mount.host_path}:{mount.container_path}:(read_only:{'true' if mount.read_only else 'false'})"
        for mount in app.mounts
    ]
    lines += _block("mounts", mounts)
    lines += _block("user_annotations", [f"{name}:{value}" for name, value in app.user_annotations])
    lines += _block("user_labels", [f"{name}:{value}" for name, value in app.user_labels])
    return "".join(f"{harmless(line)}\n" for line in lines)


def _block(name: str, values: Sequence[str]) -> list[str]:
    """Return lines of which rkt's logger ends each part with a newline."""
    return [f"{name}=", ",".join(values), ""] if values else []
