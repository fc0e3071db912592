# ruff: noqa: F401
"""
Modules that the standard library imports where it first needs them, imported beforehand.

A program of stage1 imports nothing once it works (`forget_imports` in minit/linux/process.py), and a dumped program has
nothing to import from.
"""

import encodings.ascii
import encodings.latin_1
import encodings.utf_8
import linecache
import tokenize
import traceback
