"""The oldest kernel minit runs on."""

from __future__ import annotations

MINIMUM_KERNEL = (5, 12)  # mount_setattr; openat2, clone3, pidfd and close_range are older


def parse_kernel_release(release: str) -> tuple[int, int]:
    """Return (major, minor) of a release such as `6.1.0-18-amd64`."""
    major, _, rest = release.partition(".")
    minor = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    return int(major), int(minor)
