"""
The first steps of a dumped interpreter, in Python: it takes over what is its process's own.

What CPython itself renews, and who calls this: minit/image/dump/restore.c.
"""

from __future__ import annotations

import _signal
import _thread
import io
import os
import random
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

generators: list[random.Random] = []
"""Those that modules have made for themselves; the dumped state is the same in every process."""

_STREAMS = (
    ("stdin", 0, "r", "surrogateescape"),
    ("stdout", 1, "w", "surrogateescape"),
    ("stderr", 2, "w", "backslashreplace"),
)


def start(arguments: Sequence[str], variables: Sequence[bytes], ignored: Sequence[int]) -> None:
    """
    Run the entrypoint that the second of the `arguments` names, or the program text behind `-c`.

    The first is the path of the program, `PREFIX/bin/NAME`. `ignored` are the signals that the caller ignores.
    """
    program, what, *rest = arguments
    for number in ignored:
        _signal.signal(number, _signal.SIG_IGN)
    for variable in variables:
        name, equals, value = variable.partition(b"=")
        if equals and name:
            os.environ._data.setdefault(name, value)  # type: ignore[attr-defined]
    sys.orig_argv[:] = arguments
    sys.argv[:] = [what, *rest]
    sys.prefix = sys.base_prefix = sys.exec_prefix = sys.base_exec_prefix = program.rpartition("/bin/")[0]
    for stream, fd, mode, errors in _STREAMS:
        opened = _open(fd, mode, errors)
        setattr(sys, stream, opened)
        setattr(sys, f"__{stream}__", opened)
    take_thread(_thread.get_ident())
    for generator in generators:
        generator.seed()
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_signal.SIGINT,))
    if what == "-c":
        sys.argv[1:] = rest[1:]
        exec(rest[0], vars(sys.modules["__main__"]))
    else:
        sys.modules[f"entrypoints.{what}"].main()


def take_thread(identifier: int) -> None:
    """Make the only thread there is the one of this number, get_ident()."""
    thread = threading.main_thread()
    thread._ident = identifier  # type: ignore[attr-defined]
    thread._native_id = None  # type: ignore[attr-defined]
    threading._active.clear()  # type: ignore[attr-defined]
    threading._active[identifier] = thread  # type: ignore[attr-defined]


def _open(fd: int, mode: str, errors: str) -> io.TextIOWrapper | None:
    try:
        stream = open(fd, mode, encoding="utf-8", errors=errors, closefd=False)
    except OSError:
        return None  # the caller has closed it
    assert isinstance(stream, io.TextIOWrapper)
    if fd == 2:
        stream.reconfigure(line_buffering=True)
    return stream
