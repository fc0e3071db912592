"""minit: a stage1 for rkt without systemd, and the `minit` command around it."""

__version__ = "0.2.0"
