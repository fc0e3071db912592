# ruff: noqa: F401
"""
What the standard library imports where it first needs it, imported beforehand.

A program of stage1 imports nothing once it works (`forget_imports` in minit/process.py), and what was dumped has
nothing to import from.
"""

import encodings.ascii
import encodings.latin_1
import encodings.utf_8
import linecache
import tokenize
import traceback
