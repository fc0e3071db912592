"""
Run in the interpreter before the dump: imports modules, and drops the state of this machine and this moment.

    SOURCES [PATHS OMITTED OPENSSL EXECUTABLE PREFIX BASE_PREFIX] NAME...

The text is run in __main__, which is empty afterwards. The program starts with `start` of __main__. The program of an
image is for any machine; then SOURCES is empty. The program of the command is for this machine: modules come from the
installed command, and the program starts if the files in the list SOURCES are unchanged.
"""

from __future__ import annotations

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
    # As for modules that are not frozen; some modules find others by this path.
    os.__file__ = f"{sys.path[-2]}/os.py"
    for name in omitted.split(","):
        sys.modules[name] = None  # type: ignore[assignment]


def serve_output() -> None:
    """Be a sidecar to the end of an output of some lines; the log is in the current directory."""
    from minit.iottymux import spawner
    from minit.iottymux.buffers import make_buffer
    from minit.linux.messages import socket_pair

    reader, writer = os.pipe()
    os.write(writer, b"line\n" * 3)
    os.close(writer)
    directory, null = os.open(".", os.O_RDONLY | os.O_DIRECTORY), os.open(os.devnull, os.O_RDWR)
    belongings = spawner.Belongings(log_directory=directory, kubernetes_log=None, null=null, filter=b"")
    ours, theirs = socket_pair()
    # Not the number of this process, whose length would decide where objects lie.
    spawner.hand_over(ours, 1, [("stdout", reader, make_buffer())], (0, 1, None))
    spawner.run_as_sidecar("app", theirs, belongings)


from entrypoints import _dumped  # noqa: E402

for name in names:
    if ".so." in name:
        import ctypes

        ctypes.CDLL(name)
    else:
        __import__(name)
        # minit's programs turn the collector off; memory that is freed during imports is used by later imports.
        gc.enable()
gc.disable()
# Or each program searches the codec when the program first opens a file of numbers.
codecs.lookup("ascii")

if sources_file:
    import hashlib

    from minit.linux import libcrypto

    # A static library without one of both fails here, and no program fails later.
    hashlib.sha256(b"")
    hashlib.sha512(b"")
    # Not to be called from here on: the implementation depends on the processor of the running program.
    if openssl:
        with contextlib.suppress(OSError, AttributeError):
            hashlib.sha256, hashlib.sha512 = libcrypto.load_sha2(openssl)  # type: ignore[assignment]
    with open(sources_file, "rb") as file:
        sources = file.read()
else:
    import platform
    import types

    import structlog.stdlib

    # A module in memory has no file, and no directory for other modules.
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
    # An entrypoint forgets these anyway (forget_imports), and would write to the memory in each process.
    sys.meta_path.clear()
    sys.path_hooks.clear()
    platform._uname_cache = None  # type: ignore[attr-defined]
    # CPython fills caches and rewrites code when a function has run some times. In a program that has run as a sidecar
    # before its dump a sidecar finds both so, and writes to fewer pages.
    for _ in range(20):
        serve_output()
    for name in ("app.log", "app.lock"):
        os.unlink(name)
    # The keys of a log record, which has the number of a process.
    structlog.stdlib._LOG_RECORD_KEYS = dict.fromkeys(structlog.stdlib._LOG_RECORD_KEYS).keys()

sys.argv.clear()
sys.orig_argv.clear()
os.environ.clear()
_dumped.take_thread(0)
_dumped.generators += [found for found in gc.get_objects() if isinstance(found, random.Random)]
for generator in _dumped.generators:
    generator.seed(0)
start = _dumped.start
