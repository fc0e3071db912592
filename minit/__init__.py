"""minit: a stage1 for rkt without systemd, and the `minit` command around it."""

__version__ = "0.3.0"
RELEASE_SECONDS = 1_795_824_000
"""The day of this version in the changelog, 2026-11-28, since 1970: the time of everything that is published."""
