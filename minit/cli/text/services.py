"""
Files by which supervisors run pods from boot on: units of systemd, scripts of OpenRC, and quadlets of podman; pure.

The services in contrib/ have the same texts, which a test compares.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from minit.base.jsontext import quote

_PLAIN = re.compile(r"[A-Za-z0-9_@=:,./+-]+", re.ASCII)
_RESTARTS = {"Always": "always", "OnFailure": "on-failure", "Never": "no"}

Fields = Mapping[str, object]
Warn = Callable[[str], None]


def systemd_unit(
    comment: str,
    description: str,
    verb: str,
    start: Sequence[str],
    after: Sequence[str] = (),
    wanted_by: str = "multi-user.target",
) -> str:
    """
    Return a unit of a pod; `start` are lines that start the pod by `minit VERB`, `after` lines for the time after.

    `comment` is the first line, `wanted_by` the target from which on an enabled unit runs.
    """
    lines = (
        comment,
        "[Unit]",
        f"Description={description}",
        "Documentation=man:minit(1)",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        "# The unit is started when the pod is ready.",
        "Type=notify",
        *start,
        f"# SIGTERM to the process of `minit {verb}` stops the pod in order.",
        "KillMode=mixed",
        "Delegate=yes",
        "Restart=on-failure",
        "TimeoutStartSec=5min",
        "TimeoutStopSec=2min",
        *after,
        "",
        "[Install]",
        f"WantedBy={wanted_by}",
    )
    return "\n".join(lines) + "\n"


def openrc_script(comment: Sequence[str], settings: Sequence[str], verb: str, check: str = "") -> str:
    """Return a script of a pod; `settings` are its name, description, supervisor, command and arguments."""
    lines = (
        "#!/sbin/openrc-run",
        *comment,
        "",
        *settings,
        'respawn_delay="${respawn_delay:-1}"',
        'pidfile="/run/${RC_SVCNAME}.pid"',
        'output_log="${output_log:-/var/log/${RC_SVCNAME}.log}"',
        'error_log="${error_log:-${output_log}}"',
        f"# SIGTERM to the process of `minit {verb}` stops the pod in order.",
        'retry="${retry:-TERM/120/KILL/10}"',
        "",
        "depend() {",
        "    need localmount",
        "    use net dns logger",
        "    after firewall",
        "}",
    )
    return "\n".join(lines) + "\n" + check


def unit_of_pod(name: str, command: Sequence[str], *, is_of_user: bool = False) -> str:
    """Return the unit of a pod that `command` starts in the foreground, by the machine's systemd or by a user's."""
    words = " ".join(systemd_word(word) for word in command)
    comment = f"# Pod {name} from boot on, as its last run; written by minit generate systemd."
    wanted_by = "default.target" if is_of_user else "multi-user.target"
    return systemd_unit(comment, f"Pod {name}", "start", [f"ExecStart={words}"], wanted_by=wanted_by)


def script_of_pod(name: str, command: Sequence[str]) -> str:
    """Return the OpenRC script of a pod that `command` starts in the foreground."""
    program, *arguments = command
    return openrc_script(
        [f"# Pod {name} from boot on, as its last run; written by minit generate openrc."],
        [
            f'name="pod {name}"',
            'description="Runs a pod with minit"',
            "supervisor=supervise-daemon",
            f"command={shlex.quote(program)}",
            f"command_args={shlex.quote(shlex.join(arguments))}",
        ],
        "start",
    )


def systemd_word(text: str) -> str:
    """Return a word of a command line in a unit, in quotes if need be."""
    escaped = text.replace("%", "%%").replace("$", "$$")
    return escaped if _PLAIN.fullmatch(text) else quote(escaped)


def kube_quadlet(name: str) -> str:
    """Return the quadlet of a Pod in the file NAME.yaml beside the quadlet."""
    return f"[Unit]\nDescription=Pod {name}\n\n[Kube]\nYaml={name}.yaml\n\n[Install]\nWantedBy=default.target\n"


def container_quadlet(name: str, document: Fields, warn: Warn) -> str:
    """
    Return the quadlet of the only container of a Pod.

    `warn` gets a line for each field without a key of a quadlet.
    """
    spec = _fields(document["spec"])
    [container] = _list(spec["containers"])
    lines = [*_container_lines(name, spec, container, warn)]
    for field in sorted(spec.keys() - _OF_SPEC):
        warn(f"a quadlet of one container has no {field}")
    restart = _RESTARTS.get(str(spec.get("restartPolicy")), "always")
    head = ["[Unit]", f"Description=Pod {name}", "", "[Container]"]
    tail = ["", "[Service]", f"Restart={restart}", "", "[Install]", "WantedBy=default.target"]
    return "\n".join((*head, *lines, *tail)) + "\n"


_OF_SPEC = {"containers", "restartPolicy", "volumes", "hostname", "hostNetwork", "terminationGracePeriodSeconds"}
_OF_CONTAINER = {
    *("name", "image", "command", "args", "env", "workingDir", "ports", "volumeMounts", "securityContext"),
    *("resources", "imagePullPolicy"),
}
_OF_SECURITY = {"runAsUser", "runAsGroup", "readOnlyRootFilesystem", "capabilities", "privileged"}


def _container_lines(name: str, spec: Fields, container: Fields, warn: Warn) -> Iterator[str]:
    yield f"ContainerName={name}"
    yield f"Image={container['image']}"
    command = [str(word) for word in (*_items(container.get("command")), *_items(container.get("args")))]
    if container.get("command"):
        yield f"Entrypoint={command.pop(0)}"
    if command:
        yield f"Exec={' '.join(map(systemd_word, command))}"
    for variable in _list(container.get("env")):
        if "value" in variable:
            yield "Environment=" + systemd_word(f"{variable['name']}={variable['value']}")
        else:
            warn(f"a quadlet has no variable from elsewhere: {variable['name']}")
    if container.get("workingDir"):
        yield f"WorkingDir={container['workingDir']}"
    if spec.get("hostname"):
        yield f"HostName={spec['hostname']}"
    if spec.get("hostNetwork"):
        yield "Network=host"
    if spec.get("terminationGracePeriodSeconds") is not None:
        yield f"StopTimeout={spec['terminationGracePeriodSeconds']}"
    for port in _list(container.get("ports")):
        if port.get("hostPort"):
            address = f"{port['hostIP']}:" if port.get("hostIP") else ""
            protocol = "/udp" if port.get("protocol") == "UDP" else ""
            yield f"PublishPort={address}{port['hostPort']}:{port['containerPort']}{protocol}"
    yield from _volume_lines(spec, container, warn)
    yield from _security_lines(_fields(container.get("securityContext")), warn)
    limits = _fields(_fields(container.get("resources")).get("limits"))
    yield from (f"PodmanArgs=--memory={size}" for size in [_bytes(limits.get("memory"))] if size)
    if limits.keys() - {"memory"}:
        warn(f"limits that a quadlet has no key for: {', '.join(sorted(limits.keys() - {'memory'}))}")
    for field in sorted(container.keys() - _OF_CONTAINER):
        warn(f"a quadlet of one container has no {field}")


def _bytes(quantity: object) -> str:
    """Return a quantity of memory in podman's form."""
    return re.sub("([KMG])i$", lambda unit: unit[1].lower(), str(quantity or ""))


def _volume_lines(spec: Fields, container: Fields, warn: Warn) -> Iterator[str]:
    sources = {str(volume["name"]): volume for volume in _list(spec.get("volumes"))}
    for mount in _list(container.get("volumeMounts")):
        volume = sources.get(str(mount["name"]), {})
        read_only = ":ro" if mount.get("readOnly") else ""
        if "hostPath" in volume:
            part = f"/{mount['subPath']}" if mount.get("subPath") else ""
            yield f"Volume={_fields(volume['hostPath'])['path']}{part}:{mount['mountPath']}{read_only}"
        elif "persistentVolumeClaim" in volume:
            yield f"Volume={_fields(volume['persistentVolumeClaim'])['claimName']}:{mount['mountPath']}{read_only}"
        elif "emptyDir" in volume and not mount.get("subPath"):
            yield f"Volume={mount['mountPath']}"
        else:
            warn(f"a quadlet has no volume like {mount['name']}, for {mount['mountPath']}")


def _security_lines(security: Fields, warn: Warn) -> Iterator[str]:
    for field, key in (("runAsUser", "User"), ("runAsGroup", "Group")):
        if security.get(field) is not None:
            yield f"{key}={security[field]}"
    if security.get("readOnlyRootFilesystem"):
        yield "ReadOnly=true"
    if security.get("privileged"):
        yield "PodmanArgs=--privileged"
    capabilities = _fields(security.get("capabilities"))
    for field, key in (("drop", "DropCapability"), ("add", "AddCapability")):
        names = [str(word) for word in _items(capabilities.get(field))]
        if names:
            yield f"{key}={' '.join(word if word == 'ALL' else f'CAP_{word}' for word in names)}"
    for field in sorted(security.keys() - _OF_SECURITY):
        warn(f"a quadlet has no securityContext.{field}")


def _fields(value: object) -> Fields:
    return value if isinstance(value, dict) else {}


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) else ()


def _list(value: object) -> list[Fields]:
    return [_fields(each) for each in _items(value)]
