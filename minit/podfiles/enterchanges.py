"""The surroundings of a command that the caller of `enter` chooses: between stage0 and the entrypoint."""

from __future__ import annotations

from minit.base.value import Value
from minit.base.valuecodec import ValueCodec


class EnterChanges(Value):
    """Variables, a directory, a user and a group by number, each instead of the app's."""

    environment: tuple[tuple[str, str], ...] = ()
    working_directory: str | None = None
    uid: int | None = None
    gid: int | None = None


CHANGES = ValueCodec(EnterChanges)
NO_CHANGES = EnterChanges()
