"""
Lists of domain names as options of DHCP and router advertisements have them (RFC 1035, 3.1; RFC 3397).

Pure. They become a line of resolv.conf.
"""

from __future__ import annotations

_POINTER = 0xC0
_LONGEST_LABEL_BYTES = 63
_LONGEST_NAME = 253


def parse_domain_names(data: bytes, *, compressed: bool = False) -> tuple[str, ...]:
    """
    Return the names, without the dot at their ends; none if anything of them is broken.

    One that is `compressed` may end with a pointer to what comes before it. Zeros at the end are padding.
    """
    names = []
    at = 0
    try:
        while at < len(data):
            labels, at = _read_labels(data, at, compressed)
            name = ".".join(labels)
            if not labels and any(data[at:]):
                return ()
            if len(name) > _LONGEST_NAME:
                return ()
            names += [name] if name else []
    except (IndexError, ValueError):
        return ()
    return tuple(names)


def is_domain_name(text: str) -> bool:
    """Tell whether `text` has only what may be in a name of resolv.conf."""
    return all(letter.isascii() and (letter.isalnum() or letter in "-._") for letter in text)


def _read_labels(data: bytes, at: int, compressed: bool) -> tuple[list[str], int]:
    """Return the labels of the name at `at`, and where the next one is."""
    labels: list[str] = []
    after: int | None = None
    begun = at
    while length := data[at]:
        if length & _POINTER == _POINTER and compressed:
            target = (length & ~_POINTER) << 8 | data[at + 1]
            after = at + 2 if after is None else after
            if target >= begun:
                raise ValueError("a pointer that leads not back")
            begun = at = target
            continue
        label = data[at + 1 : at + 1 + length].decode("ascii")
        if length > _LONGEST_LABEL_BYTES or len(label) != length or "." in label or not is_domain_name(label):
            raise ValueError("no label of a name")
        labels.append(label)
        at += 1 + length
    return labels, at + 1 if after is None else after
