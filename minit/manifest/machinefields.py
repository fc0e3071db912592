"""The kinds of values in machine.toml: tables, names, addresses, URLs of HTTP (RFC 9110, 4.2.1), times."""

from __future__ import annotations

import socket
import tomllib
from collections.abc import Sequence

from minit.base.errors import ManifestError
from minit.base.hostname import find_fault, is_domain_name
from minit.base.value import Value
from minit.manifest.reader import Node

MAXIMUM_SECONDS = 24 * 3600
_MAXIMUM_ID = 0xFFFFFFFE
# A kernel takes 2048, or 256 on some processors; the hash of the root has a hundred.
_MAXIMUM_WORDS = 1500
_SCHEME = "http://"
_PORT = 80
_MAXIMUM_PORT = 65535
_MAXIMUM_CHARACTERS = 2000


class Url(Value):
    """A URL: host, port, and the texts for the field `Host:` and for the request line."""

    host: str
    port: int
    authority: str
    target: str


def is_url(text: str) -> bool:
    """Tell whether `text` is meant to be a URL and no path."""
    return "://" in text


def parse_url(text: str) -> Url:
    """Return the parts of a URL; ValueError has the reason."""
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


def read_toml(data: bytes, source: str) -> object:
    """Return the tables of a TOML file; ManifestError for values beyond JSON."""
    try:
        table = tomllib.loads(data.decode())
        _refuse_what_is_not_json(table, source)
    except (ValueError, RecursionError) as error:  # no TOML, no text, or a number of thousands of digits
        raise ManifestError(f"{source}: expected TOML: {error}") from error
    return table


def _refuse_what_is_not_json(value: object, source: str) -> None:
    """Refuse values of TOML that JSON lacks, and numbers beyond TOML's range."""
    if isinstance(value, dict):
        for child in value.values():
            _refuse_what_is_not_json(child, source)
    elif isinstance(value, list):
        for child in value:
            _refuse_what_is_not_json(child, source)
    elif isinstance(value, int):
        if not -1 << 63 <= value < 1 << 63:
            raise ManifestError(f"{source}: expected integers of 64 bits, got a larger one")
    elif not isinstance(value, str):
        raise ManifestError(f"{source}: expected strings, integers, true and false, got {value}")


def refuse_others(node: Node, fields: Sequence[str], renamed: dict[str, str] | None = None) -> None:
    """Refuse names that no field has: a misspelt name would be ignored in silence."""
    known = {(renamed or {}).get(field, field) for field in fields}
    for name, child in read_table(node):
        if name not in known:
            raise child.error(f"one of {', '.join(sorted(known))}", f'"{name}"')


def read_table(node: Node) -> list[tuple[str, Node]]:
    """Return the fields of a table, none without a table."""
    value = node.raw()
    if value is None:
        return []
    if not isinstance(value, dict):
        raise node.error("a table")
    return [(name, Node(child, node, name)) for name, child in value.items()]


def read_key_name(node: Node) -> str:
    """Return the name of a public key's file beside machine.toml."""
    return node.matching(
        lambda text: "/" not in text and text not in ("", ".", ".."),
        'the name of a file beside this one ("update.pub")',
    )


def read_url(node: Node) -> str:
    """Return a URL of HTTP."""
    node.parsed(parse_url, "a URL of HTTP (http://updates.example.org/sensor.update)")
    return node.string()


def read_command_line(node: Node) -> str:
    """Return words for the kernel's command line."""
    return node.matching(
        lambda text: len(text) <= _MAXIMUM_WORDS and text.isascii() and text.isprintable(),
        f"at most {_MAXIMUM_WORDS} printable characters of ASCII",
    )


def read_path(node: Node) -> str:
    """Return an absolute path without `.` and `..`."""
    return node.matching(_is_path, "an absolute path without . and .., and no / at its end (/data/minit)")


def _is_path(text: str) -> bool:
    root, *names = text.split("/")
    return not root and bool(names) and all(name not in ("", ".", "..") for name in names)


def read_mode(node: Node) -> int:
    """Return permissions, which are written in octal."""
    expected = 'permissions in octal ("0660")'
    return int(node.matching(lambda text: 0 < len(text) <= 4 and set(text) <= set("01234567"), expected), 8)


def read_id(node: Node) -> int:
    """Return a uid or a gid."""
    return node.integer(0, _MAXIMUM_ID)


def read_link(node: Node) -> str:
    """Return the name of a link below /dev."""
    return node.matching(
        lambda text: all(part not in ("", ".", "..") for part in text.split("/")), "a name below /dev (disk/data)"
    )


def read_hostname(node: Node) -> str:
    """Return a host name."""
    return node.matching(lambda text: find_fault(text) is None, "a host name of 1 to 64 bytes")


def read_module(node: Node) -> str:
    """Return the name of a kernel module."""
    return node.matching(is_module_name, "the name of a kernel module")


def is_module_name(text: str) -> bool:
    """Tell whether `text` may be the name of a kernel module."""
    return bool(text) and all(letter.isalnum() or letter in "_-" for letter in text) and text.isascii()


def read_sysctl(name: str, node: Node) -> str:
    """Return the value of the sysctl `name`."""
    if ".." in name or "/" in name or "\0" in name or not name:
        raise node.error("the name of a sysctl (net.ipv4.ip_forward)", f'"{name}"')
    value = node.raw()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else node.string()


def is_interface_name(text: str) -> bool:
    """Tell whether the kernel allows `text` as the name of an interface."""
    # dev_valid_name() of the kernel.
    return 0 < len(text.encode()) < 16 and text not in (".", "..") and not any(c in "/:" or c.isspace() for c in text)


def is_ipv6(address: str) -> bool:
    """Tell whether an address, with or without the length of its prefix, belongs to IPv6."""
    return ":" in address


def read_address(node: Node) -> str:
    """Return an address of IPv4."""
    return node.matching(_is_ipv4_address, "an IPv4 address")


def read_ipv6_address(node: Node) -> str:
    """Return an address of IPv6."""
    return node.matching(_is_ipv6_address, "an IPv6 address")


def read_any_address(node: Node) -> str:
    """Return an address of IPv4 or IPv6."""
    return node.matching(is_address, "an IP address")


def read_server(node: Node) -> str:
    """Return an address or the name of a host."""
    return node.matching(lambda text: is_address(text) or is_domain_name(text), "an IP address or the name of a host")


def read_address_with_prefix(node: Node) -> str:
    """Return an address of IPv4 or IPv6 with the length of its prefix."""
    return node.matching(_is_address_with_prefix, "an IP address with the length of its prefix (192.0.2.7/24)")


def is_address(text: str) -> bool:
    """Tell whether `text` is an address of IPv4 or IPv6."""
    return _is_ipv6_address(text) if is_ipv6(text) else _is_ipv4_address(text)


def _is_ipv4_address(text: str) -> bool:
    parts = text.split(".")
    return len(parts) == 4 and all(_is_number(part, 255) for part in parts)


def _is_ipv6_address(text: str) -> bool:
    try:
        return bool(socket.inet_pton(socket.AF_INET6, text))
    except (OSError, ValueError):
        return False  # none, or not even a C string


def _is_address_with_prefix(text: str) -> bool:
    address, _, length = text.partition("/")
    return is_address(address) and _is_number(length, 128 if is_ipv6(address) else 32)


def _is_number(text: str, highest: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 3 and str(int(text)) == text and int(text) <= highest


def read_boolean(node: Node, default: bool) -> bool:
    """Return a boolean, `default` for an absent value."""
    return node.boolean() if node.given else default


def read_seconds(node: Node, default: int) -> int:
    """Return a number of seconds, `default` for an absent value."""
    return node.integer(0, MAXIMUM_SECONDS) if node.given else default
