"""The exec of a container's command, with the exit codes of shells where it fails."""

from __future__ import annotations

import errno
import os
from typing import NoReturn

from minit.errors import reason_of
from minit.reaper.diagnose import diagnose_exec
from minit.stdio import complain

_EXIT_NOT_EXECUTABLE = 126
_EXIT_NOT_FOUND = 127
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


def execute(command: list[str]) -> NoReturn:
    """Execute a command as execvp(3) does; end with the exit codes of shells if that fails."""
    name = command[0]
    path = os.environ.get("PATH", _DEFAULT_PATH)
    candidates = [name] if "/" in name else [f"{folder or '.'}/{name}" for folder in path.split(":")]
    failure: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for candidate in candidates:
        try:
            os.execv(candidate, command)
        except (FileNotFoundError, NotADirectoryError) as error:
            if os.path.lexists(candidate):
                failure = error
                break
        except PermissionError as error:
            failure = error
        except OSError as error:
            if error.errno == errno.ENOEXEC:  # a script that names no interpreter
                os.execv("/bin/sh", ["/bin/sh", candidate, *command[1:]])
            failure = error
            break
    complain(f"minit: exec {name}: {_explain(candidate, failure)}")
    os._exit(_EXIT_NOT_FOUND if failure.errno in (errno.ENOENT, errno.ENOTDIR) else _EXIT_NOT_EXECUTABLE)


def _explain(path: str, failure: OSError) -> str:
    """Return the reason in words; what is there and still not found lacks its interpreter."""
    if isinstance(failure, FileNotFoundError) and os.path.exists(path):
        return diagnose_exec(os.path.abspath(path))
    return reason_of(failure.errno or 0)
