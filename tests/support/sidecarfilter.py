"""The filter of system calls that sidecars have, for those that tests fork."""

from __future__ import annotations

from functools import cache

from minit.launcher.start.filterprograms import compile_sidecar_filter

sidecar_filter = cache(compile_sidecar_filter)
