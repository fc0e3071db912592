"""Stands in for urllib.parse, which pathlib imports to write file: URIs; ipaddress and unicodedata come with it."""


def quote_from_bytes(text: bytes) -> str:
    """Refuse: nothing in a stage1 writes URIs."""
    raise NotImplementedError(text)
