"""Documents as YAML that Kubernetes and `yamltext` read as what they are."""

from __future__ import annotations

import re
from collections.abc import Iterable

import yaml

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*", re.ASCII)
# Words that are no strings to one reader or another.
_WORDS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
    def ignore_aliases(self, data: object) -> bool:
        """Write everything out."""
        return True


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_plain else '"')


_Dumper.add_representer(str, _write_text)


def write_documents(documents: Iterable[object]) -> str:
    """Return documents as the text of a file."""
    text: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=120)
    return text
