"""Stands in for urllib.parse, which pathlib imports to write file: URIs, with ipaddress and unicodedata in its train."""


def quote_from_bytes(text: bytes) -> str:
    """Refuse: nothing in a stage1 writes URIs."""
    raise NotImplementedError(text)
