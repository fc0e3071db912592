"""Stands in for pickle, of which structlog imports an error: PID 1 pickles nothing."""

from __future__ import annotations


class PicklingError(Exception):
    """An object that cannot be pickled."""
