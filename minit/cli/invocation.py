"""One call of the `minit` command: the global options, and messages to the user."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from minit.base.errors import FailureKind, MinitError
from minit.base.harmless import harmless
from minit.podfiles.usersdirectory import RUNTIME_VARIABLE, config_directory, data_directory, is_of_user, require_own
from minit.pods.caller import DEFAULT_LOCAL_CONFIG, DEFAULT_SYSTEM_CONFIG, Caller

DEFAULT_DATA = Path("/var/lib/rkt")

# --insecure-options of rkt. minit fetches no keys, and always compares hashes: words about these have no effect.
_RUN_OPTIONS = frozenset({"capabilities", "image-isolators", "paths", "seccomp"})
_FETCH_OPTIONS = frozenset({"http", "image", "tls"})
INSECURE_OPTIONS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("none", "ondisk", "pubkey"), frozenset()),
    **{name: frozenset({name}) for name in (*_FETCH_OPTIONS, *_RUN_OPTIONS)},
    "all-fetch": _FETCH_OPTIONS,
    "all-run": _RUN_OPTIONS,
    "all": _FETCH_OPTIONS | _RUN_OPTIONS,
}


class Invocation:
    """The global options, which may stand before and after the command, and the command's name."""

    def __init__(self) -> None:
        self.command = "minit"
        self.debug = False
        self._local_config: str | None = None
        self.system_config = DEFAULT_SYSTEM_CONFIG
        self.insecure: frozenset[str] = frozenset()
        self.failure_kind: FailureKind | None = None
        """Of a command that has failed, if it is known."""
        self._given_data: Path | None = None
        self._data: Path | None = None

    @property
    def data(self) -> Path:
        """
        The data directory, without symbolic links: paths below it end up in mount tables; MinitError if another user
        owns the directory.
        """
        if self._data is None:
            path = self._given_data or (data_directory() if is_of_user() else DEFAULT_DATA)
            resolved = Path(os.path.realpath(path))
            require_own(resolved)
            self._data = resolved
        return self._data

    @data.setter
    def data(self, path: Path) -> None:
        """Take what the user gave for --dir."""
        self._given_data, self._data = path, None

    @property
    def local_config(self) -> str:
        """The directory of local configuration."""
        return self._local_config or (str(config_directory()) if is_of_user() else DEFAULT_LOCAL_CONFIG)

    @local_config.setter
    def local_config(self, path: str) -> None:
        """Take what the user gave for --local-config."""
        self._local_config = path

    @property
    def caller(self) -> Caller:
        """The global options in the form for the service of pods."""
        return Caller(
            data=self.data,
            note=self.note,
            local_config=self.local_config,
            system_config=self.system_config,
            insecure=self.insecure,
            debug=self.debug,
        )

    @property
    def terminal_width(self) -> int | None:
        """The columns of the terminal that shows the result; None without a terminal."""
        try:
            return os.get_terminal_size(sys.stdout.fileno()).columns or None
        except OSError:
            return None

    def say(self, text: str, end: str = "\n") -> None:
        """Print the command's result, or a line of the result."""
        print(text, end=end)

    def note(self, text: str) -> None:
        """Tell the user something beside the result; no failure if the message cannot be written."""
        try:
            print(f"{self.command}: {harmless(text)}", file=sys.stderr, flush=True)
        except OSError:
            # Python would try, and fail, once more at the end.
            sys.stderr = open(os.devnull, "w")

    def require_root(self) -> None:
        """Raise MinitError unless root of the machine runs the command."""
        if is_of_user():
            raise MinitError("cannot run as unprivileged user: this command needs root")

    def look_into_pod(self, *, has_own_ids: bool) -> None:
        """Enter the user's namespace for a pod whose files belong to other ids of the user's."""
        if os.geteuid() != 0 and has_own_ids:
            self.become_root()

    def become_root(self, *, in_scope: bool = False) -> None:
        """
        Go on as root, where need be of the user's namespace; MinitError if that cannot be.

        With `in_scope`, for a command with processes in the groups of pods, a user's systemd gives the command a scope.
        """
        if is_of_user():
            # Not in the image of a machine, which has no users.
            from minit.pods.rootless import become_root
            from minit.pods.userscope import enter_scope

            if in_scope and os.geteuid() != 0:
                enter_scope()
            become_root(self.data, self.note)
        else:
            # Of a user who has become root, and has kept the environment.
            os.environ.pop(RUNTIME_VARIABLE, None)
