"""Pods as `list` and `status` show them: rkt's text, byte for byte, and rkt's JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minit.base.harmless import harmless
from minit.base.value import Value
from minit.cli.text.formats import ZERO_TIME, align, fit, format_age, format_time
from minit.stage0.pods.exposedports import ForwardedPort
from minit.stage0.pods.poddirectory import ENDED_STATES, PodState
from minit.stage0.pods.podstatus import APP_PAUSED, AppMount, AppStatus, PodStatus

_SECOND_NS = 1_000_000_000
_SHORT_UUID = 8
_IMAGE_ID = len("sha512-") + 12

_LEGEND = ("UUID", "APP", "IMAGE NAME", "STATE", "CREATED", "STARTED", "NETWORKS")
_FULL_LEGEND = ("UUID", "APP", "IMAGE NAME", "IMAGE ID", "STATE", "CREATED", "STARTED", "NETWORKS")

_SHORTENED = tuple(_LEGEND.index(name) for name in ("APP", "IMAGE NAME", "NETWORKS"))

_WITH_NETWORKS = frozenset({PodState.RUNNING, PodState.EXITED})
_ONCE_STARTED = ENDED_STATES | {PodState.RUNNING, PodState.DELETING}
_EXITED = frozenset({PodState.EXITED, PodState.EXITED_GARBAGE})

Json = dict[str, object]


class OwnFacts(Value):
    """Facts beyond rkt's: fields of JSON of the apps, by name, and ports of the host that lead to the pod."""

    fields: Mapping[str, Json] = {}
    ports: tuple[ForwardedPort, ...] = ()
    errors: int = 0
    """The number of errors of PID 1's own code."""
    is_behind: bool = False
    """True if minit on the host is newer than the running pod's."""


_NO_FACTS = OwnFacts()


def list_text(
    pods: Sequence[PodStatus],
    now_ns: int,
    *,
    full: bool,
    legend: bool,
    width: int | None = None,
    own: Mapping[str, OwnFacts] | None = None,
) -> str:
    """
    Return the table of `list`: a row per app, with what belongs to the pod in its first row only.

    Behind rkt's columns are those of which there is anything to tell, `own` has what by UUID: the names of pods,
    ports, restarts and, with `full`, volumes and the versions of pods that are behind.
    `width` is that of the terminal that it is for, None for anything else. Columns that are asked for in full are not
    shortened.
    """
    rows: list[Sequence[str]] = []
    if legend:
        rows.append(_FULL_LEGEND if full else _LEGEND)
    for pod in pods:
        rows += _pod_rows(pod, now_ns, full=full)
    shortened = list(_SHORTENED)
    for heading, cells in _own_columns(pods, own or {}, full=full):
        if any(cells):
            if heading == "PORTS":
                shortened.append(len(rows[0]))
            column = [heading, *cells] if legend else cells
            rows = [[*row, cell] for row, cell in zip(rows, column, strict=True)]
    return align(rows) if width is None or full else fit(rows, width, shortened)


def status_text(pod: PodStatus, own: OwnFacts = _NO_FACTS) -> str:
    """Return the lines of `status`: those of rkt, and behind them minit's own, of what there is."""
    lines = [
        f"state={pod.state}",
        f"created={ZERO_TIME if pod.created_ns is None else format_time(pod.created_ns)}",
    ]
    if pod.started_ns is not None:
        lines.append(f"started={format_time(pod.started_ns)}")
    if pod.state in _WITH_NETWORKS:
        lines.append(f"networks={_networks(pod)}")
    if pod.state in _ONCE_STARTED:
        if pod.pid is not None:
            lines.append(f"pid={pod.pid}")
        lines.append(f"exited={'true' if pod.state in _EXITED else 'false'}")
        if pod.state is not PodState.RUNNING:
            lines += [f"app-{app.name}={app.exit_code}" for app in pod.apps if app.exit_code is not None]
    if pod.name is not None:
        lines.append(f"pod-name={pod.name}")
    if pod.version is not None:
        lines.append(f"version={harmless(pod.version)}")
    if own.errors:
        lines.append(f"supervisor-errors={own.errors}")
    lines += [f"port-{pod_place(port)}={host_place(port)}" for port in own.ports]
    for app in pod.apps:
        lines += [f"mount-{app.name}={_volume(mount)}" for mount in app.mounts]
        if app.state == APP_PAUSED:
            lines.append(f"paused-{app.name}=true")
        fields = own.fields.get(app.name, {})
        if fields.get("restarts"):
            lines.append(f"restarts-{app.name}={fields['restarts']}")
        if fields.get("restart_in_seconds") is not None:
            again_in = fields["restart_in_seconds"]
            lines.append(f"crash-loop-{app.name}={fields.get('end', 'ended')}, again in {again_in} s")
        if fields.get("lost_output_bytes") is not None:
            lines.append(f"lost-output-{app.name}={fields['lost_output_bytes']}")
    return "".join(f"{line}\n" for line in lines)


def pod_json(pod: PodStatus, own: OwnFacts = _NO_FACTS) -> Json:
    """Return a pod as rkt writes it in JSON: its own times in seconds, those of its apps in nanoseconds."""
    return _without_empty(
        {
            "name": pod.uuid,
            "pod_name": pod.name,
            "state": str(pod.state),
            "version": pod.version,
            "supervisor_errors": own.errors or None,
            "networks": [dict(network) for network in pod.networks],
            "ports": [port_json(port) for port in own.ports],
            "app_names": [app.name for app in pod.apps],
            "apps": [{**app_json(app), **own.fields.get(app.name, {})} for app in pod.apps],
            "created_at": None if pod.created_ns is None else pod.created_ns // _SECOND_NS,
            "started_at": None if pod.started_ns is None else pod.started_ns // _SECOND_NS,
            "user_annotations": dict(pod.user_annotations),
            "user_labels": dict(pod.user_labels),
        }
    )


def app_json(app: AppStatus) -> Json:
    """Return an app as rkt writes it in JSON."""
    return _without_empty(
        {
            "name": app.name,
            "state": app.state,
            "created_at": app.created_ns,
            "started_at": app.started_ns,
            "finished_at": app.finished_ns,
            "exit_code": app.exit_code,
            "image_id": app.image_id,
            "mounts": [
                {
                    "name": mount.name,
                    "container_path": mount.container_path,
                    "host_path": mount.host_path,
                    "read_only": mount.read_only,
                }
                for mount in app.mounts
            ],
            "user_annotations": dict(app.user_annotations),
            "user_labels": dict(app.user_labels),
        }
    )


def _without_empty(fields: Json) -> Json:
    """Return the known fields; 0 is known."""
    return {name: value for name, value in fields.items() if value is not None and value not in ([], {})}


def _pod_rows(pod: PodStatus, now_ns: int, *, full: bool) -> list[list[str]]:
    if full:
        created = ZERO_TIME if pod.created_ns is None else format_time(pod.created_ns)
        started = "" if pod.started_ns is None else format_time(pod.started_ns)
    else:
        created = format_age(pod.created_ns, now_ns)
        started = "" if pod.started_ns is None else format_age(pod.started_ns, now_ns)
    head, tail = (
        pod.uuid if full else pod.uuid[:_SHORT_UUID],
        [str(pod.state), created, started, _networks(pod)],
    )
    rows = []
    for app in pod.apps or (None,):
        if app is None:
            cells = ["-", "-", "-"]
        else:
            cells = [app.name, harmless(app.image_name or "--"), (app.image_id or "--")[:_IMAGE_ID]]
        rows.append([head, *(cells if full else cells[:2]), *tail])
        head, tail = "", [""] * len(tail)
    return rows


def _own_columns(pods: Sequence[PodStatus], own: Mapping[str, OwnFacts], *, full: bool) -> list[tuple[str, list[str]]]:
    names, ports, restarts, volumes, versions = [], [], [], [], []
    for pod in pods:
        facts = own.get(pod.uuid, _NO_FACTS)
        names += _once(pod.name or "", pod)
        ports += _once(", ".join(f"{host_place(port)}->{pod_place(port)}" for port in facts.ports), pod)
        restarts += [_restarts(facts.fields.get(app.name, {})) for app in pod.apps] or [""]
        volumes += [", ".join(map(_volume, app.mounts)) if full else "" for app in pod.apps] or [""]
        versions += _once(f"{harmless(pod.version or '')} (behind)" if full and facts.is_behind else "", pod)
    return [("NAME", names), ("PORTS", ports), ("RESTARTS", restarts), ("VOLUMES", volumes), ("VERSION", versions)]


def _restarts(fields: Json) -> str:
    count = fields.get("restarts")
    if not count:
        return ""
    return str(count) if fields.get("restart_in_seconds") is None else f"{count} (crash loop)"


def _volume(mount: AppMount) -> str:
    where = f"{harmless(mount.host_path or mount.name)}:{harmless(mount.container_path)}"
    return f"{where}:ro" if mount.read_only else where


def _once(cell: str, pod: PodStatus) -> list[str]:
    """Return the cells of a pod's rows that are filled only in the first row."""
    return [cell, *[""] * (len(pod.apps) - 1)]


def _networks(pod: PodStatus) -> str:
    shown = []
    for network in map(dict, pod.networks):
        name, ipv4, ipv6 = network["netName"], network["ip"], network.get("ip6", "").partition("/")[0]
        if ipv4 or not ipv6:
            # An unknown address, as Go prints it.
            shown.append(f"{name}:ip4={ipv4 or '<nil>'}")
        if ipv6:
            shown.append(f"{name}:ip6={ipv6}")
    return harmless(", ".join(shown))


def host_place(port: ForwardedPort) -> str:
    """Return where the host listens: `ADDRESS:PORT`, with the last of several behind a dash."""
    address = port.host_ip or "0.0.0.0"
    return f"{f'[{address}]' if ':' in address else address}:{_range(port.host_port, port)}"


def pod_place(port: ForwardedPort) -> str:
    """Return the target in the pod: `PORT/PROTOCOL`."""
    return f"{_range(port.pod_port, port)}/{port.protocol}"


def port_json(port: ForwardedPort) -> dict[str, object]:
    """Return the fields of a port."""
    return {
        "name": port.name,
        "protocol": port.protocol,
        "pod_port": port.pod_port,
        "host_ip": port.host_ip or "",
        "host_port": port.host_port,
        "count": port.count,
    }


def _range(first: int, port: ForwardedPort) -> str:
    return str(first) if port.count == 1 else f"{first}-{first + port.count - 1}"
