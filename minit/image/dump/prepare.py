"""
Run in the interpreter that is to be dumped: imports modules, and lets go of what is of this machine and this moment.

Its text is run in __main__, which is empty afterwards. The program starts with what is `start` there.
"""

import codecs
import ctypes
import gc
import logging
import os
import platform
import random
import sys
import types

from entrypoints import _dumped

# The import makes a record of this moment. Its keys are kept; the time decides which memory they lie in.
clock, logging.time = logging.time, types.SimpleNamespace(time=float, time_ns=int)  # type: ignore[attr-defined]
import structlog.stdlib  # noqa: E402

logging.time = clock  # type: ignore[attr-defined]

for name in sys.argv:
    if ".so." in name:
        ctypes.CDLL(name)
    else:
        __import__(name)
        # Our programs turn it off when they begin; what is let go while others are imported is memory for these.
        gc.enable()
gc.disable()
# Or each program looks for it when it first opens a file of numbers.
codecs.lookup("ascii")

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
sys.argv.clear()
sys.orig_argv.clear()
os.environ.clear()
logging._startTime = 0.0  # type: ignore[attr-defined]
platform._uname_cache = None  # type: ignore[attr-defined]
# The attributes of a record that was made for it, at some time by some process.
structlog.stdlib._LOG_RECORD_KEYS = dict.fromkeys(structlog.stdlib._LOG_RECORD_KEYS).keys()

_dumped.take_thread(0)
_dumped.generators += [found for found in gc.get_objects() if isinstance(found, random.Random)]
for generator in _dumped.generators:
    generator.seed(0)
start = _dumped.start
