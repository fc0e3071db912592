"""Stands in for unicodedata, a megabyte of tables that attrs and tracebacks ask about names: PID 1 has ASCII ones."""

from __future__ import annotations


def normalize(form: str, text: str, /) -> str:
    """Return what is in every normal form already."""
    return text


def east_asian_width(character: str, /) -> str:
    """Return what takes one column."""
    return "N"
