"""
Run in the interpreter that is to be dumped: imports modules, and lets go of what is of this machine and this moment.

    SOURCES [PATHS OMITTED OPENSSL EXECUTABLE PREFIX BASE_PREFIX] NAME...

Its text is run in __main__, which is empty afterwards. The program starts with what is `start` there. The program of an
image is for any machine; then SOURCES is empty. The program of the command is for this one: it imports from where the
command is installed, and starts if the files that SOURCES lists are as they were.
"""

import codecs
import contextlib
import gc
import os
import random
import sys

sources_file, *names = sys.argv
if sources_file:
    paths, omitted, openssl, executable, prefix, base_prefix, *names = names
    sys.path[:] = paths.split(":")
    sys.executable = executable
    sys.prefix = sys.exec_prefix = prefix
    sys.base_prefix = sys.base_exec_prefix = base_prefix
    # Like the modules that are not frozen; some ask it where the others are.
    os.__file__ = f"{sys.path[-2]}/os.py"
    for name in omitted.split(","):
        sys.modules[name] = None  # type: ignore[assignment]
else:
    import logging
    import types

    # The import makes a record of this moment. Its keys are kept; the time decides which memory they lie in.
    clock, logging.time = logging.time, types.SimpleNamespace(time=float, time_ns=int)  # type: ignore[attr-defined]
    import structlog.stdlib

    logging.time = clock  # type: ignore[attr-defined]

from entrypoints import _dumped  # noqa: E402

for name in names:
    if ".so." in name:
        import ctypes

        ctypes.CDLL(name)
    else:
        __import__(name)
        # Our programs turn it off when they begin; what is let go while others are imported is memory for these.
        gc.enable()
gc.disable()
# Or each program looks for it when it first opens a file of numbers.
codecs.lookup("ascii")

if sources_file:
    import hashlib

    from minit.linux import libcrypto

    # Where the static library lacks one of them this is the end, and there is no program that fails later.
    hashlib.sha256(b"")
    hashlib.sha512(b"")
    # Not to be called from here on: the processor that the program runs on decides how they do it.
    if openssl:
        with contextlib.suppress(OSError, AttributeError):
            hashlib.sha256, hashlib.sha512 = libcrypto.load_sha2(openssl)  # type: ignore[assignment]
    with open(sources_file, "rb") as file:
        sources = file.read()
else:
    import platform

    # A module that is loaded from memory has no file, and no directory to look for others in.
    for module in sys.modules.values():
        if not isinstance(module, types.ModuleType):
            continue
        for name in ("__file__", "__cached__"):
            vars(module).pop(name, None)
        if hasattr(module, "__path__"):
            module.__path__ = []
        spec = module.__spec__
        if spec is not None and spec.has_location:
            spec.loader = module.__loader__ = spec.origin = spec.cached = None
            spec.has_location = False
            if spec.submodule_search_locations is not None:
                spec.submodule_search_locations = []
    sys.path.clear()
    sys.path_importer_cache.clear()
    # What an entrypoint forgets anyway (forget_imports); the memory of it would be written to in each process.
    sys.meta_path.clear()
    sys.path_hooks.clear()
    logging._startTime = 0.0  # type: ignore[attr-defined]
    platform._uname_cache = None  # type: ignore[attr-defined]
    # The attributes of a record that was made for it, at some time by some process.
    structlog.stdlib._LOG_RECORD_KEYS = dict.fromkeys(structlog.stdlib._LOG_RECORD_KEYS).keys()

sys.argv.clear()
sys.orig_argv.clear()
os.environ.clear()
_dumped.take_thread(0)
_dumped.generators += [found for found in gc.get_objects() if isinstance(found, random.Random)]
for generator in _dumped.generators:
    generator.seed(0)
start = _dumped.start
