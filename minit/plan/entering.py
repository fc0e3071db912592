"""
The profile of a command that is entered into an app: the confinement and the surroundings of the app.

The profile is decided with the app. `enter` asks PID 1 for the profile; when PID 1 does not answer, a copy lies in the
pod directory. As bytes a profile is a line of JSON with the sizes of the following parts: the environment, then each
filter.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

from minit.base.errors import LaunchError, ManifestError
from minit.base.idrange import HeldIds
from minit.base.jsontext import dump, parse
from minit.base.value import Value, replace
from minit.linux.attributes import Attributes, Limit
from minit.plan.appspec import AppSpec
from minit.plan.confinement import Confinement
from minit.podfiles.enterchanges import EnterChanges

T = TypeVar("T")

MAXIMUM_PROFILE_BYTES = 16 << 20


class EnterProfile(Value):
    """
    The surroundings of an app outside of its namespaces and control groups, and the confinement.

    The ids of the confinement are the app's. With `own_pids` the command is in the PID namespace of the app's process.
    `oom_score_adj` and `attributes` None leave the caller's. Without the working directory the command begins in `/`,
    unless `needs_directory`.
    """

    environment: tuple[tuple[bytes, bytes], ...]
    working_directory: str = "/"
    confinement: Confinement = Confinement()
    oom_score_adj: int | None = None
    attributes: Attributes | None = None
    limits: tuple[Limit, ...] = ()
    own_pids: bool = False
    needs_directory: bool = False


def changed(profile: EnterProfile, changes: EnterChanges) -> EnterProfile:
    """Return a profile with the changes; a chosen user has no further groups, and the group 0 without another."""
    names = {os.fsencode(name) for name, _ in changes.environment}
    kept = (pair for pair in profile.environment if pair[0] not in names)
    new = ((os.fsencode(name), os.fsencode(value)) for name, value in changes.environment)
    profile = replace(profile, environment=(*kept, *new))
    if changes.working_directory is not None:
        profile = replace(profile, working_directory=changes.working_directory, needs_directory=True)
    if changes.uid is not None:
        ids = replace(profile.confinement, uid=changes.uid, gid=changes.gid or 0, supplementary_gids=())
        profile = replace(profile, confinement=ids)
    return profile


def held_by(profile: EnterProfile, held: HeldIds | None) -> EnterProfile:
    """Return a profile for a pod that has these ids, None for every id; LaunchError for a missing user or group."""
    if held is None:
        return profile
    confinement = profile.confinement
    lack = held.find_lack(confinement.uid, confinement.gid)
    if lack is not None:
        raise LaunchError(f"cannot run a command as {confinement.uid}:{confinement.gid}: {lack}")
    return replace(profile, confinement=replace(confinement, sets_groups=held.sets_groups))


def profile_of(spec: AppSpec, attributes: Attributes) -> EnterProfile:
    """Return the profile of a command in an app whose processes have these attributes."""
    return EnterProfile(
        environment=tuple((os.fsencode(name), os.fsencode(value)) for name, value in spec.process.environment),
        working_directory=spec.process.working_directory,
        confinement=spec.command_confinement,
        oom_score_adj=spec.resources.oom_score_adj or 0,
        attributes=attributes,
        limits=spec.resources.rlimits,
        own_pids=spec.process.own_pids,
    )


_NUMBERS = ("nice", "policy", "io_priority", "personality", "timer_slack_ns", "thp_disable")


def encode_profile(profile: EnterProfile) -> bytes:
    """Return a profile as bytes."""
    environment = b"".join(b"%s=%s\0" % pair for pair in profile.environment)
    confinement = profile.confinement
    header = {
        "cwd": profile.working_directory,
        "uid": confinement.uid,
        "gid": confinement.gid,
        "gids": confinement.supplementary_gids,
        "bounding": confinement.bounding,
        "noNewPrivileges": confinement.no_new_privileges,
        "apparmorProfile": confinement.apparmor_profile,
        "oomScoreAdj": profile.oom_score_adj,
        "attributes": None if profile.attributes is None else _attributes_object(profile.attributes, profile.limits),
        "ownPids": profile.own_pids,
        "sizes": [len(environment), *map(len, confinement.filters)],
    }
    return b"".join((dump(header), b"\n", environment, *confinement.filters))


def decode_profile(data: bytes, source: str) -> EnterProfile:
    """Return the profile in `data`; LaunchError names `source` if it is none."""
    line, _, rest = data.partition(b"\n")
    try:
        header = parse(line, source)
        if not isinstance(header, dict):
            raise ValueError("expected an object")
        sizes = _integers(header["sizes"])
        if not sizes or min(sizes) < 0 or sum(sizes) != len(rest):
            raise ValueError("its parts have other sizes than it says")
        bounding, oom_score_adj = header["bounding"], header["oomScoreAdj"]
        attributes = header["attributes"]
        apparmor_profile = header.get("apparmorProfile")  # which pods of older versions do not have
        ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
        variables = [variable.partition(b"=") for variable in rest[: ends[0]].split(b"\0")[:-1]]
        return EnterProfile(
            environment=tuple((name, value) for name, _, value in variables),
            working_directory=_expect(str, header["cwd"]),
            confinement=Confinement(
                uid=_expect(int, header["uid"]),
                gid=_expect(int, header["gid"]),
                supplementary_gids=_integers(header["gids"]),
                bounding=None if bounding is None else _expect(int, bounding),
                no_new_privileges=_expect(bool, header["noNewPrivileges"]),
                apparmor_profile=None if apparmor_profile is None else _expect(str, apparmor_profile),
                filters=tuple(rest[start:end] for start, end in zip(ends, ends[1:])),
            ),
            oom_score_adj=None if oom_score_adj is None else _expect(int, oom_score_adj),
            attributes=None if attributes is None else _read_attributes(_expect(dict, attributes)),
            limits=() if attributes is None else _read_limits(attributes["limits"]),
            own_pids=_expect(bool, header["ownPids"]),
        )
    except KeyError as error:
        raise LaunchError(f"{source}: {error.args[0]} is missing") from error
    except (ManifestError, ValueError) as error:
        reason = str(error).removeprefix(f"{source}: ")
        raise LaunchError(f"{source}: {reason}") from error


def _attributes_object(attributes: Attributes, limits: Sequence[Limit]) -> dict[str, object]:
    # The limits stand beside the attributes, as pods of older versions have them.
    names = ("affinity", "coredump_filter", *_NUMBERS)
    return {"limits": limits, **{name: getattr(attributes, name) for name in names}}


def _read_attributes(value: dict[str, object]) -> Attributes:
    coredump_filter = value["coredump_filter"]
    return Attributes(
        affinity=_integers(value["affinity"]),
        coredump_filter=None if coredump_filter is None else _expect(int, coredump_filter),
        **{name: _expect(int, value[name]) for name in _NUMBERS},
    )


def _read_limits(value: object) -> tuple[Limit, ...]:
    limits = [_integers(limit) for limit in _expect(list, value)]
    if any(len(limit) != 3 for limit in limits):
        raise ValueError("a limit has three numbers")
    return tuple((number, soft, hard) for number, soft, hard in limits)


def _integers(value: object) -> tuple[int, ...]:
    return tuple(_expect(int, item) for item in _expect(list, value))


def _expect(kind: type[T], value: object) -> T:
    if type(value) is not kind:
        raise ValueError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value
