"""
Every on-disk name that stage0, stage1 and their users share, as pure functions and constants.

Names `POD_…` are relative to the pod directory, the working directory of every entrypoint. Names `STAGE1_…` are
absolute inside the stage1 root, PID 1's root.
"""

from __future__ import annotations

import re
from enum import StrEnum

POD_MANIFEST = "pod"
POD_CREATED = "pod-created"
POD_PID = "pid"
POD_PPID = "ppid"
POD_SUBCGROUP = "subcgroup"
POD_STAGE1 = "stage1"
POD_STAGE1_MANIFEST = "stage1/manifest"
POD_STAGE1_ROOTFS = "stage1/rootfs"
POD_STAGE1_TREE_ID = "stage1TreeStoreID"
POD_OVERLAY_PREPARED = "overlay-prepared"
POD_PRIVATE_USERS = "private-users-prepared"
POD_LOCK = "pod.lck"
POD_SHARED_VOLUMES = "sharedVolumes"
POD_HOSTS_FALLBACK = "stage1/rootfs/etc/hosts-fallback"
POD_HOSTS = "stage1/rootfs/etc/rkt-hosts"
POD_RESOLV_CONF = "stage1/rootfs/etc/rkt-resolv.conf"
POD_NETNS = "netns"
POD_NET = "net"
POD_NET_INFO = "net-info.json"
POD_ENTER = "enter"
POD_RUNTIME_CONFIG = "runtime-config"
POD_HOST_PIDS = "minit-host-pids"
POD_REMOVER = "minit-remover"
POD_UPGRADES = "minit-upgrades"
POD_CONTROL = "stage1/rootfs/rkt/minit/control"
POD_FAILURE = "stage1/rootfs/rkt/minit/failure"
POD_EVENTS = "stage1/rootfs/rkt/minit/events.log"
POD_PLUGINS = "stage1/rootfs/usr/lib/rkt/plugins/net"

CRI_RECORDS = "cri"
"""What a kubelet asked for, in a data directory."""

STAGE1_CONTROL = "/rkt/minit/control"
STAGE1_STATE = "/rkt/minit/state"
STAGE1_FAILURE = "/rkt/minit/failure"
STAGE1_PLAN = "/rkt/minit/plan"
STAGE1_ERRORS = "/rkt/minit/supervisor-errors"
STAGE1_LOG = "/rkt/minit/log"
STAGE1_KUBERNETES_LOG = "/rkt/kubernetes/log"
STAGE1_IOTTYMUX = "/rkt/iottymux"
STAGE1_SUPERVISOR_LOG = "/rkt/minit/supervisor.log"
STAGE1_EVENTS = "/rkt/minit/events.log"
STAGE1_PANIC = "/rkt/minit/panic.log"
STAGE1_NOTIFY = "/rkt/minit/notify-"
STAGE1_STATUS = "/rkt/status"
STAGE1_ENV = "/rkt/env"
STAGE1_READY = "/rkt/supervisor-status"
STAGE1_FILTERS = "/usr/lib/minit/seccomp"
# A directory with the files of each later image, by the ID of the tree.
STAGE1_UPGRADES = "/opt/stage1"

# Places on a machine that minit boots, absolute in its root.
# The machine's only pod lies where the command looks for pods, always under the same name.
MACHINE_UUID = "00000000-0000-4000-8000-000000000001"
MACHINE_POD = f"/var/lib/rkt/pods/run/{MACHINE_UUID}"
MACHINE_COMMAND = "/bin/minit"
MACHINE_CONFIG = "/etc/minit/machine.toml"
MACHINE_KEYS = "/etc/minit/keys"
MACHINE_UPDATES = "/run/minit/update"
MACHINE_MODULES = "/lib/modules/minit"
# The path that kernels use.
MACHINE_FIRMWARE = "/lib/firmware"
MACHINE_MODULE_TABLE = "/lib/modules/minit/table.json"
# A FIFO for requests of the machine's root to end the machine.
MACHINE_ENDING = "/run/minit/ending"
MACHINE_LOG = "/run/log/kernel.log"
MACHINE_PANIC = "/run/log/panic.log"
KERNEL_COMMAND_LINE = "/proc/cmdline"
HOST_RESOLV_CONF = "/etc/resolv.conf"
MACHINE_RESOLV_CONF = "/run/resolv.conf"
MACHINE_INIT = "/init"
MACHINE_SLOTS = ("a", "b")
MACHINE_ROOT_OPENER = "usr/lib/minit/openroot"

REMOVER_VARIABLE = "MINIT_REMOVER"
FAILURE_VARIABLE = "MINIT_FAILURE"
"""In the environment of `run`: the process that removes the pod, a child of this one, for which it is to wait."""

READY_TARGET = "ready"
DEFAULT_FILTER = "calls.bpf"
# The same list, but refused calls fail with EPERM instead of a fatal signal.
LENIENT_FILTER = "calls-eperm.bpf"
SIDECAR_FILTER = "sidecar.bpf"
STATUS_DIRECTORY = "rkt/status"
# In the directory of an app's attachable streams: rkt's two, and the socket of minit's own sessions.
ENDPOINTS = "endpoints"
SOCKET_PREFIX = "sock-"
SESSION_SOCKET = "sock-minit"

STAGE1_NAME = "minit/stage1"
ANNOTATION_STAGE1 = "coreos.com/rkt/stage1/"
ANNOTATION_CONTROL = "minit/stage1/control"
ANNOTATION_GC_MANY = "minit/stage1/gc-many"
ANNOTATION_TREE = "minit/stage1/tree"
"""In a pod's stage1 manifest: the tree of the image that the pod was upgraded to."""
ANNOTATION_STATE_FORMAT = "minit/stage1/state-format"
ANNOTATION_INTERFACE_VERSION = "coreos.com/rkt/stage1/interface-version"
ANNOTATION_MUTABLE = "coreos.com/rkt/stage1/mutable"
ANNOTATION_STREAM = "coreos.com/rkt/stage2/"
ANNOTATION_ATTACH_OPTIONS = "minit/stage1/attach-options"
ANNOTATION_RUN_OPTIONS = "minit/stage1/run-options"
ANNOTATION_ENTER_OPTIONS = "minit/stage1/enter-options"
_TREE_SOURCE = re.compile(r"/.*/cas/tree/(deps-sha512-[0-9a-f]{64})/rootfs")
ETC_FILES = ("/etc/hostname", "/etc/hosts", "/etc/resolv.conf")
"""Those that stage1 gives to apps."""
ANNOTATION_NOTIFY = "appc.io/executor/supports-systemd-notify"
ANNOTATION_LOG_MODE = "coreos.com/rkt/experiment/logmode"
ANNOTATION_KUBERNETES_DIRECTORY = "coreos.com/rkt/experiment/kubernetes-log-dir"
INTERFACE_VERSION = 6

# The built-in plugins of networks: links by these names to one entrypoint, in the directory of rkt's plugins.
PLUGINS = "usr/lib/rkt/plugins/net"
PLUGIN_ENTRYPOINT = "cni"
BUILT_IN_PLUGINS = (
    "bandwidth",
    "bridge",
    "dhcp",
    "dummy",
    "firewall",
    "flannel",
    "host-device",
    "host-local",
    "ipvlan",
    "loopback",
    "macvlan",
    "portmap",
    "ptp",
    "static",
    "tuning",
    "vlan",
)

SELINUX = "/sys/fs/selinux/enforce"
"""A file that is there where the kernel has SELinux."""

# Flags of our `attach` beyond rkt's; the value of ANNOTATION_ATTACH_OPTIONS in our image, joined by commas.
ATTACH_OPTIONS = ("detach-keys", "failure-fd", "no-replay", "on-slow", "read-only", "ready-fd", "take-stdin")
# The same of our `run`.
RUN_OPTIONS = ("quiet", "tell-failure")
ENTER_ROOT_FD = "root-fd"


class PodEvent(StrEnum):
    """The events in the file STAGE1_EVENTS of a pod; docs/events.md has the meanings."""

    APP_STATE = "app.state"
    APP_EXITED = "app.exited"
    APP_HEALTH = "app.health"
    APP_HELPER_DIED = "app.helper-died"
    APP_READY = "app.ready"
    APP_STOPPING = "app.stopping"
    APP_PAUSED = "app.paused"
    APP_RESUMED = "app.resumed"
    APP_MESSAGE_REFUSED = "app.message-refused"
    APP_RESTART_PLANNED = "app.restart-planned"
    APP_END_WRITTEN = "app.end-written"
    APP_RESTART_CANCELLED = "app.restart-cancelled"
    APP_RESTARTS_GIVEN_UP = "app.restarts-given-up"
    APP_STARTED_AGAIN = "app.started-again"
    APP_ATTACHED = "app.attached"
    APP_DETACHED = "app.detached"
    APP_OUTPUT_DROPPED = "app.output-dropped"
    APP_OUTPUT_LOST = "app.output-lost"
    HANDLER_STARTED = "handler.started"
    HANDLER_ENDED = "handler.ended"
    HANDLER_SKIPPED = "handler.skipped"
    SIDECAR_LOST = "sidecar.lost"
    SIDECAR_GIVEN_UP = "sidecar.given-up"
    SUPERVISOR_FAILED = "supervisor.failed"
    SUPERVISOR_RESUMED = "supervisor.resumed"
    POD_READY = "pod.ready"
    POD_UPGRADED = "pod.upgraded"
    POD_STOP_REQUESTED = "pod.stop-requested"
    POD_DEADLINE_EXCEEDED = "pod.deadline-exceeded"
    POD_STOPPING = "pod.stopping"
    POD_ENDED = "pod.ended"
    POD_KILLED = "pod.killed"
    GAP = "gap"  # in the place of events that are not in the file


def app_manifest(app: str) -> str:
    """Return the image manifest of `app` as stage1 reads it, relative to the pod directory."""
    return f"{POD_STAGE1_ROOTFS}/opt/stage2/{app}/manifest"


def enter_profile(app: str) -> str:
    """Return the file with the profile of entered commands, relative to the pod directory, which no app can reach."""
    return f"{POD_ENTER}/{app}"


def app_rootfs(app: str) -> str:
    """Return the app's root relative to the stage1 root."""
    return f"opt/stage2/{app}/rootfs"


def status_file(app: str) -> str:
    """Return the file of the app's exit status, inside the stage1 root."""
    return f"{STAGE1_STATUS}/{app}"


def created_marker(app: str) -> str:
    """Return the marker with the time of the app's adding as mtime, inside the stage1 root."""
    return f"{STAGE1_STATUS}/{app}-created"


def started_marker(app: str) -> str:
    """Return the marker with the time of the app's start as mtime, inside the stage1 root."""
    return f"{STAGE1_STATUS}/{app}-started"


def state_file(app: str) -> str:
    """Return minit's own record of the app's end, inside the stage1 root."""
    return f"{STAGE1_STATE}/{app}.json"


def env_file(app: str) -> str:
    """Return the app's environment as `enter` reads it, inside the stage1 root."""
    return f"{STAGE1_ENV}/{app}"


def log_file(app: str) -> str:
    """Return the app's log, inside the stage1 root."""
    return f"{STAGE1_LOG}/{app}.log"


def log_end_marker(app: str) -> str:
    """Return the file that appears when the app's log is complete, inside the stage1 root."""
    return f"{STAGE1_LOG}/{app}.ended"


def iottymux_directory(app: str) -> str:
    """Return the directory with the sockets of the app's attachable streams, inside the stage1 root."""
    return f"{STAGE1_IOTTYMUX}/{app}"


def pod_cgroup_name(uuid: str) -> str:
    r"""Return the name of the pod's control group, `machine-rkt\x2d<uuid>.scope` with systemd's escapes."""
    return "machine-rkt\\x2d" + uuid.replace("-", "\\x2d") + ".scope"


def tree_of_source(source: str) -> str | None:
    """Return the ID of the tree in a volume's source (rootfs of a tree below cas/tree), None for other sources."""
    found = _TREE_SOURCE.fullmatch(source)
    return None if found is None else found[1]
