# ruff: noqa: F401
"""
Modules that the standard library imports at first use, imported beforehand.

A program of stage1 imports nothing while at work (`forget_imports` in minit/linux/process.py), and a dumped program has
no files of modules. The dump of the command names this module, too.
"""

import encodings.ascii
import encodings.latin_1
import encodings.utf_8
import linecache
import tokenize
import traceback
