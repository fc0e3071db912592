"""A person at a terminal, played by tmux(1): types keys, sees a screen, changes the window's size."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_for


class Tmux:
    """A window of `columns` and `rows` in which a program runs; `server` is the path for the socket."""

    def __init__(self, server: Path, command: list[str], *, columns: int, rows: int, **options: Any) -> None:
        self._server = server
        size = ["-x", str(columns), "-y", str(rows)]
        self._call("new-session", "-d", *size, *command, **options)
        # Whatever happens to the program, its last screen can be seen.
        self._call("set-option", "remain-on-exit", "on")

    def __enter__(self) -> Tmux:
        return self

    def __exit__(self, *_: object) -> None:
        self._call("kill-server")

    def press(self, *keys: str) -> None:
        """Press keys by tmux's names, C-p say; any other word is typed."""
        self._call("send-keys", *keys)

    def resize(self, columns: int, rows: int) -> None:
        """Change the window's size."""
        self._call("resize-window", "-x", str(columns), "-y", str(rows))

    @property
    def screen(self) -> str:
        """The screen, without spaces at the ends of lines."""
        return self._call("capture-pane", "-p")

    def show(self, fact: str) -> str:
        """Return a format of tmux's about the window, `cursor_flag` say."""
        return self._call("display-message", "-p", f"#{{{fact}}}").strip()

    def expect(self, text: str) -> None:
        """Wait until something is seen."""
        screen = ""

        def look() -> bool:
            nonlocal screen
            screen = self.screen
            return text in screen

        try:
            wait_for(look, f"{text!r} on the screen")
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{screen}") from error

    def _call(self, *words: str, **options: Any) -> str:
        command = ["tmux", "-u", "-f", "/dev/null", "-S", str(self._server), *words]
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30, **options)
        return str(result.stdout)
