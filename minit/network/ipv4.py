"""IPv4 addresses as integers; `ipaddress` would take longer to load than all else here."""

from __future__ import annotations

from minit.value import Value

_BITS = 32
_ALL = 0xFFFFFFFF


class Subnet(Value):
    """A block of addresses: its first one, and the length of the prefix they share."""

    address: int
    prefix: int

    def __str__(self) -> str:
        return f"{format_address(self.address)}/{self.prefix}"

    def __contains__(self, address: int) -> bool:
        return address & self.mask == self.address

    @property
    def mask(self) -> int:
        """Return the mask of the prefix."""
        return _ALL << (_BITS - self.prefix) & _ALL

    @property
    def broadcast(self) -> int:
        """Return the last address, which is that of all hosts."""
        return self.address | _ALL ^ self.mask


def parse_address(text: str) -> int:
    """Return the address that `text` is in dotted decimal form, without leading zeros; ValueError if it is none."""
    parts = text.split(".")
    if len(parts) != 4 or not all(_is_octet(part) for part in parts):
        raise ValueError(f"not an IPv4 address: {text!r}")
    return int.from_bytes(bytes(int(part) for part in parts), "big")


def format_address(address: int) -> str:
    """Return an address in dotted decimal form."""
    return ".".join(str(octet) for octet in address.to_bytes(4, "big"))


def parse_interface(text: str) -> tuple[int, int]:
    """Return the address and the prefix length in `ADDRESS/LENGTH`; ValueError if it is no such text."""
    address, slash, length = text.partition("/")
    if not slash or not _is_number(length) or int(length) > _BITS:
        raise ValueError(f"not an address with a prefix length: {text!r}")
    return parse_address(address), int(length)


def parse_subnet(text: str) -> Subnet:
    """Return the subnet `ADDRESS/LENGTH`; ValueError if it is no such text or has bits beyond the prefix."""
    address, prefix = parse_interface(text)
    subnet = subnet_of(address, prefix)
    if subnet.address != address:
        raise ValueError(f"bits beyond the prefix: {text!r}")
    return subnet


def subnet_of(address: int, prefix: int) -> Subnet:
    """Return the subnet that an address is in."""
    return Subnet(address=address & Subnet(address=0, prefix=prefix).mask, prefix=prefix)


def _is_octet(text: str) -> bool:
    return _is_number(text) and int(text) < 256


def _is_number(text: str) -> bool:
    return len(text) <= 3 and text.isascii() and text.isdigit() and (text == "0" or text[0] != "0")
