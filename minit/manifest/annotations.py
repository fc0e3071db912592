"""The annotations of minit: a row for each, with its possible places and the module that reads its value."""

from __future__ import annotations

from difflib import get_close_matches
from enum import Flag, StrEnum, auto
from functools import cache

OWN = "minit/"
"""The beginning of all their names, and of no others that are not refused."""


class Place(Flag):
    """
    Where an annotation has an effect: a pod, an app, an image as the default for its apps.

    EVERY is an annotation of a pod with the meaning of the same annotation of every app. With FIELD a Pod of Kubernetes
    has a field for the annotation of an app, with POD_FIELD for the annotation of a pod.
    """

    POD = auto()
    APP = auto()
    IMAGE = auto()
    EVERY = auto()
    FIELD = auto()
    POD_FIELD = auto()


_POD, _APP, _IMAGE, _FIELD, _POD_FIELD = Place.POD, Place.APP, Place.IMAGE, Place.FIELD, Place.POD_FIELD
_EVERY = Place.POD | Place.APP | Place.EVERY


class Annotation(StrEnum):
    """The name of an annotation, its places, and its reader, a module below `minit.plan`."""

    places: Place
    reader: str

    def __new__(cls, name: str, places: Place, reader: str) -> Annotation:
        """Make a member of a row."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.places = places
        member.reader = f"minit.plan.{reader}"
        return member

    AFTER = "minit/after", _APP | _FIELD, "lifeplan"
    ALLOW_PRIVILEGED = "minit/allow-privileged", _POD | _POD_FIELD, "loadedpod"
    APPARMOR_PROFILE = "minit/apparmor-profile", _APP | _FIELD, "rights.seccompprofile"
    CGROUP_PARENT = "minit/cgroup-parent", _POD, "groupparent"
    DEADLINE = "minit/deadline", _POD, "life.stopping"
    DNS = "minit/dns", _POD, "networks.podnetwork"
    EXPAND = "minit/expand", _APP | _FIELD, "life.expansion"
    HEALTH = "minit/health", _APP | _FIELD, "life.health"
    HOOKS = "minit/hooks", _APP | _FIELD, "life.hooks"
    HOTPLUG = "minit/hotplug", _EVERY, "root.devicevolumes"
    IDMAP = "minit/idmap", _POD | _APP, "root.mountdetails"
    IMAGE_GROUPS = "minit/image-groups", _APP, "rights.users"
    KEEP_LOGS = "minit/keep-logs", _EVERY, "refusals"
    LATE_EXECUTABLE = "minit/late-executable", _APP | _FIELD, "process"
    LIMITS = "minit/limits", _APP, "resources"
    LOG_DIRECTORY = "minit/log-directory", _POD, "streams"
    LOG_FILES = "minit/log-max-files", _EVERY, "streams"
    LOG_SIZE = "minit/log-max-size", _EVERY, "streams"
    LOG_PATH = "minit/log-path", _APP, "streams"
    LOST_OUTPUT = "minit/lost-output", _EVERY, "streams"
    MAKE_WORKING_DIRECTORY = "minit/make-working-directory", _APP | _FIELD, "process"
    MEMORY_VOLUMES = "minit/memory-volumes", _POD | _POD_FIELD, "root.mountdetails"
    MOUNTS = "minit/mounts", _APP | _FIELD, "root.mountdetails"
    NO_NEW_PRIVILEGES = "minit/no-new-privileges", _APP | _FIELD, "confinement"
    NOTIFY_FD = "minit/notify-fd", _APP, "lifeplan"
    PID_NAMESPACE = "minit/pid-namespace", _EVERY, "process"
    PIDS_LIMIT = "minit/pids-limit", _POD | _APP, "resources"
    PLAIN_ENVIRONMENT = "minit/plain-environment", _APP, "process"
    POD_ALIASES = "minit/pod-aliases", _POD, "networks.podnetwork"
    POD_NAMES = "minit/pod-names", _POD, "networks.podnetwork"
    PRIVILEGED = "minit/privileged", _APP | _FIELD, "loadedpod"
    PROTECTED_PATHS = "minit/protected-paths", _APP, "rights.protection"
    RESTART = "minit/restart", _POD | _APP | _FIELD, "life.restart"
    RESTART_DELAY = "minit/restart-delay", _EVERY, "life.restart"
    RESTART_LIMIT = "minit/restart-limit", _EVERY, "life.restart"
    RESTART_MAX_DELAY = "minit/restart-max-delay", _EVERY, "life.restart"
    RESTART_RESET = "minit/restart-reset", _EVERY, "life.restart"
    SECCOMP = "minit/seccomp", _APP | _FIELD, "rights.seccompprofile"
    SECCOMP_ERRNO = "minit/seccomp-errno", _EVERY, "rights.seccompprofile"
    SHM_SIZE = "minit/shm-size", _POD, "root.mountdetails"
    SIDECAR = "minit/sidecar", _APP | _FIELD, "lifeplan"
    STOP_GRACE = "minit/stop-grace", _EVERY | _POD_FIELD, "life.stopping"
    STOP_SIGNAL = "minit/stop-signal", _APP | _IMAGE | _FIELD, "life.stopping"
    SYSCTLS = "minit/sysctls", _POD | _POD_FIELD, "networks.kernelsettings"
    TRUSTED_ISOLATORS = "minit/trusted-isolators", _APP | _FIELD, "confinement"
    ULIMITS = "minit/ulimits", _APP, "resources"
    VOLUMES_OVER_FILES = "minit/volumes-over-files", _APP | _FIELD, "root.etcfiles"
    VSOCK = "minit/vsock", _EVERY, "confinement"


_SPELLED = {Place.POD: "pods", Place.APP: "apps", Place.IMAGE: "images"}


@cache
def known_annotations(place: Place) -> frozenset[str]:
    """Return the names of the annotations of a place."""
    return frozenset(annotation for annotation in Annotation if place in annotation.places)


def find_fault(name: str, place: Place) -> str | None:
    """Return the fault of an annotation that has a name of minit's and no meaning in a place, with the remedy."""
    known = known_annotations(place)
    if not name.startswith(OWN) or name in known:
        return None
    others = [text for other, text in _SPELLED.items() if name in known_annotations(other)]
    if others:
        return f'annotation "{name}" is one of {" or ".join(others)}, not of {_SPELLED[place]}'
    nearest = get_close_matches(name, sorted(known), n=1)
    return f'unknown annotation "{name}"' + (f', did you mean "{nearest[0]}"?' if nearest else "")
