"""The devices of one app on the command line, in the form of docker and podman. Pure."""

from __future__ import annotations

from minit.cli.flagwords import FlagError
from minit.stage0.devices import is_cdi_name
from minit.stage0.pods.appsection import Device

DEVICE_FORM = "/PATH[:/TARGET][:rwm]|VENDOR/CLASS=NAME"
_ACCESS = frozenset("rwm")


def parse_device(flag: str, text: str) -> Device | str:
    """Return a device of the host, or the name of one of a vendor's; FlagError, naming `flag`, for what is neither."""
    if is_cdi_name(text):
        return text
    source, *rest = text.split(":")
    target = rest.pop(0) if rest and rest[0].startswith("/") else source
    access = rest.pop(0) if rest else "rwm"
    is_access = bool(access) and len({*access} & _ACCESS) == len(access)
    if rest or not source.startswith("/") or not is_access:
        raise FlagError(f'{flag}: expected {DEVICE_FORM}, got "{text}"')
    return Device(source=source, target=target, access=access)
