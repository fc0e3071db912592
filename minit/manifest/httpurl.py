"""URLs of HTTP, RFC 9110 4.2.1, of a machine's updates. Pure."""

from __future__ import annotations

from minit.base.value import Value

_SCHEME = "http://"
_PORT = 80
_MAXIMUM_PORT = 65535
_MAXIMUM_CHARACTERS = 2000


class Url(Value):
    """A URL: the host that is asked, its port, what `Host:` says, and what is asked for."""

    host: str
    port: int
    authority: str
    target: str


def is_url(text: str) -> bool:
    """Tell whether `text` is meant to be a URL and no path."""
    return "://" in text


def parse_url(text: str) -> Url:
    """Return the parts of a URL; ValueError says what is wrong with it."""
    if not text.startswith(_SCHEME):
        raise ValueError("only http:// is understood")
    printable = text.isascii() and text.isprintable() and " " not in text
    authority, slash, path = text.removeprefix(_SCHEME).partition("/")
    if not printable or len(text) > _MAXIMUM_CHARACTERS or set(authority) & set("@?#\\") or "#" in path:
        raise ValueError("no URL of a file")
    host, colon, port = authority.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = authority, str(_PORT)
    if host.startswith("["):
        host = host.removeprefix("[").removesuffix("]")
    elif ":" in host:
        raise ValueError("an IPv6 address needs brackets")
    if not host or not port.isdigit() or not 0 < int(port[:9]) <= _MAXIMUM_PORT:
        raise ValueError("no host and port")
    return Url(host=host, port=int(port), authority=authority, target=slash + path or "/")
