"""The ids of a sandbox with users of its own, which its containers and their mounts have to agree with."""

from __future__ import annotations

from collections.abc import Sequence

from minit.base.idrange import IdRange, parse_id_range
from minit.cri.api import cri_pb2 as api
from minit.cri.translation.refusal import refuse


def user_ids(options: api.NamespaceOption) -> IdRange | None:
    """Return the ids of a sandbox, None without users of its own; CallError for others than one range of both kinds."""
    users = options.userns_options
    if not options.HasField("userns_options") or users.mode == api.NODE:
        return None
    refuse(users.mode != api.POD, "userns_options.mode", "POD or NODE")
    refuse(len(users.uids) != 1 or [*users.gids] != [*users.uids], "userns_options", "one range for users and groups")
    [mapping] = users.uids
    refuse(mapping.container_id != 0, "userns_options.uids[0].container_id", "0")
    ids = parse_id_range(f"{mapping.host_id}:{mapping.length}")
    if ids is None:
        refuse(True, "userns_options.uids[0]", "ids from 1 to 4294967294")
    return ids


def check_users(options: api.NamespaceOption, ids: IdRange | None) -> None:
    """Raise CallError for a container that asks for other users than those of its sandbox."""
    differs = options.HasField("userns_options") and user_ids(options) != ids
    refuse(differs, "namespace_options.userns_options", "those of the sandbox")


def is_mapped(place: str, mount: api.Mount, ids: IdRange | None) -> bool:
    """Tell whether a mount has the owners that it has on the disk; CallError for others than those of the sandbox."""
    mappings: Sequence[Sequence[api.IDMapping]] = (mount.uidMappings, mount.gidMappings)
    if not any(mappings):
        return False
    own = [] if ids is None else [api.IDMapping(host_id=ids.shift, length=ids.count)]
    refuse(not own or any([*each] != own for each in mappings), f"{place}.uidMappings", "the range of the sandbox")
    return True
