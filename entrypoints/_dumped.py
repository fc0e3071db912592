"""
The first steps of a dumped interpreter, in Python: it takes over what is its process's own.

What CPython itself renews, and who calls this: minit/image/dump/restore.c.
"""

from __future__ import annotations

import _thread
import atexit
import gc
import io
import os
import random
import signal
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

_FLUSH_FAILED = 120  # as Py_FinalizeEx

generators: list[random.Random] = []
"""Those that modules have made for themselves; the dumped state is the same in every process."""


def start(arguments: Sequence[str], variables: Sequence[bytes], ignored: Sequence[int]) -> NoReturn:
    """
    Run the entrypoint that the second of the `arguments` names, the program text behind `-c`, or the command.

    The first is the path of the program, in an image `PREFIX/bin/NAME`. The command is named by the path of the same in
    plain Python, which runs in its place if it cannot begin. `ignored` are the signals that the caller ignores.
    """
    program, what, *rest = arguments
    if "/" in what:
        _start_command(arguments, variables, ignored)
    _take_over(arguments, variables, ignored)
    sys.argv[:] = [what, *rest]
    sys.prefix = sys.base_prefix = sys.exec_prefix = sys.base_exec_prefix = program.rpartition("/bin/")[0]
    if what == "-c":
        sys.argv[1:] = rest[1:]
        _run(lambda: exec(rest[0], vars(sys.modules["__main__"])))
    # The image's launcher blocked it for the time before this line.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
    _run(sys.modules[f"entrypoints.{what}"].main)


def _start_command(arguments: Sequence[str], variables: Sequence[bytes], ignored: Sequence[int]) -> NoReturn:
    def main() -> None:
        try:
            if signal.SIGINT not in ignored:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.modules["minit.__main__"].main()
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)

    try:
        _take_over(arguments, variables, ignored)
        sys.argv[:] = arguments[1:]
        gc.enable()
        if os.environ.get("PYTHONUNBUFFERED") and isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(write_through=True)
    except Exception:
        os.execv(arguments[1], list(arguments[1:]))
    _run(main)


def _take_over(arguments: Sequence[str], variables: Sequence[bytes], ignored: Sequence[int]) -> None:
    """Make arguments, environment, signals, streams and thread those of this process, and random numbers its own."""
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    for variable in variables:
        name, equals, value = variable.partition(b"=")
        if equals and name:
            os.environ._data.setdefault(name, value)  # type: ignore[attr-defined]
    sys.orig_argv[:] = arguments
    _take_streams()
    take_thread(_thread.get_ident())
    for generator in generators:
        generator.seed()


def _run(main: Callable[[], object]) -> NoReturn:
    """Call a function and end with its exit code, as Python does with a program's."""
    code = 0
    try:
        main()
    except SystemExit as error:
        code = _exit_code(error)
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = 1
    _end(code)


def take_thread(identifier: int) -> None:
    """Make the only thread there is the one of this number, get_ident()."""
    thread = threading.main_thread()
    thread._ident = identifier  # type: ignore[attr-defined]
    thread._native_id = None  # type: ignore[attr-defined]
    threading._active.clear()  # type: ignore[attr-defined]
    threading._active[identifier] = thread  # type: ignore[attr-defined]


def _take_streams() -> None:
    # They were made for the same descriptors; whether there is something behind these, and what, is new.
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            mode = os.fstat(fd).st_mode
        except OSError:
            setattr(sys, name, None)
            setattr(sys, f"__{name}__", None)
            continue
        if stat.S_ISDIR(mode):
            try:
                os.write(2, f"minit: {name} is a directory\n".encode())
            finally:
                os._exit(1)
    if isinstance(sys.stdout, io.TextIOWrapper) and os.isatty(1):
        sys.stdout.reconfigure(line_buffering=True)


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def _end(code: int) -> NoReturn:
    """End as Python does, but leave its objects where they are: the kernel is quicker with them."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            code = code or _FLUSH_FAILED
    os._exit(code & 0xFF)
