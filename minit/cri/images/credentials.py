"""The credentials of a pull as the file that skopeo reads, containers-auth.json(5). Pure."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import urlsplit

from minit.archives.imagenames import parse_image_name
from minit.base import jsontext
from minit.base.errors import ImageError
from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import CallError, Code

_TOKEN_USER = b"<token>:"  # without a name no entry counts, whatever token it has


def authfile(auth: api.AuthConfig, host: str) -> bytes:
    """Return the file's content for a registry, empty for none; CallError if skopeo cannot be given them."""
    _refuse(bool(auth.registry_token), "registry_token", "a password or an identity token: skopeo hides no other")
    _refuse(bool(auth.server_address) and _host(auth.server_address) != host, "server_address", host)
    if auth.username:
        _refuse(":" in auth.username, "username", "a name without a colon")
        entry = {"auth": _encoded(f"{auth.username}:{auth.password}".encode())}
    elif auth.identity_token:
        entry = {"auth": _encoded(_TOKEN_USER), "identitytoken": auth.identity_token}
    elif auth.auth:
        entry = {"auth": _encoded(_decoded(auth.auth))}
    else:
        _refuse(bool(auth.password), "username", "a name beside the password")
        return b""
    return jsontext.dump({"auths": {host: entry}})


def _host(address: str) -> str:
    """Return the registry of an address, which may be one of its interface: `https://index.docker.io/v1/`."""
    try:
        netloc = urlsplit(address if "//" in address else f"//{address}").netloc
        return parse_image_name(f"{netloc}/image").host
    except (ImageError, ValueError):
        return ""


def _encoded(text: bytes) -> str:
    return base64.b64encode(text).decode("ascii")


def _decoded(text: str) -> bytes:
    expected = "a name, a colon and a password in base64"
    try:
        decoded = base64.b64decode(text, validate=True).rstrip(b"\0")
    except (binascii.Error, ValueError):
        raise _refused("auth", expected) from None  # the text is in the other error
    if b":" not in decoded:
        raise _refused("auth", expected)
    return decoded


def _refuse(is_refused: bool, field: str, expected: str) -> None:
    if is_refused:
        raise _refused(field, expected)


def _refused(field: str, expected: str) -> CallError:
    return CallError(Code.INVALID_ARGUMENT, f"auth.{field}: expected {expected}")
