"""
Run in the interpreter that is to be dumped as the command: imports it from where it is installed.

Its text is run in __main__, which is empty afterwards. The program starts with what is `start` there, if the files that
`sources` lists are as they were.
"""

import codecs
import contextlib
import gc
import os
import random
import sys

paths, omitted, openssl, executable, prefix, base_prefix, sources_file, *names = sys.argv
sys.path[:] = paths.split(":")
sys.executable = executable
sys.prefix = sys.exec_prefix = prefix
sys.base_prefix = sys.base_exec_prefix = base_prefix
# Like the modules that are not frozen; some ask it where the others are.
os.__file__ = f"{sys.path[-2]}/os.py"
for name in omitted.split(","):
    sys.modules[name] = None  # type: ignore[assignment]
for name in names:
    __import__(name)

import hashlib  # noqa: E402

from entrypoints import _dumped  # noqa: E402
from minit import libcrypto  # noqa: E402

# Where the static library lacks one of them this is the end, and there is no program that fails later.
hashlib.sha256(b"")
hashlib.sha512(b"")
# Or each command looks for it when it first opens a file of numbers.
codecs.lookup("ascii")
# Not to be called from here on: the processor that the program runs on decides how they do it.
if openssl:
    with contextlib.suppress(OSError, AttributeError):
        hashlib.sha256, hashlib.sha512 = libcrypto.load_sha2(openssl)  # type: ignore[assignment]

start = sys.modules["minit.cli.dumped"].start
with open(sources_file, "rb") as file:
    sources = file.read()
sys.argv.clear()
sys.orig_argv.clear()
os.environ.clear()
_dumped.take_thread(0)
_dumped.generators += [found for found in gc.get_objects() if isinstance(found, random.Random)]
