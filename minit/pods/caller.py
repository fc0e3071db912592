"""The caller of the service of pods; apart from the requests, as machines have callers but no stage0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from minit.base.value import Value

DEFAULT_LOCAL_CONFIG = "/etc/rkt"
DEFAULT_SYSTEM_CONFIG = "/usr/lib/rkt"
INSECURE_IMAGES = "image"
"""The word of --insecure-options by which no signature is verified."""


class Caller(Value):
    """The place of the pods, and the caller's options for every request."""

    data: Path
    """The data directory, without symbolic links."""
    note: Callable[[str], None]
    """Tells the caller something beside the result."""
    local_config: str = DEFAULT_LOCAL_CONFIG
    system_config: str = DEFAULT_SYSTEM_CONFIG
    insecure: frozenset[str] = frozenset()
    """Single words of --insecure-options."""
    debug: bool = False

    @property
    def verifies_tls(self) -> bool:
        """Tell whether a registry has to prove its name; skopeo has one option for TLS and for HTTP."""
        return not self.insecure & {"http", "tls"}
