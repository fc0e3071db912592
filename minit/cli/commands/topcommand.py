"""The command `top`: a live table of the resource use of the apps of all running pods."""

from __future__ import annotations

import os
import re
import signal
import termios
import time
import tty
from contextlib import ExitStack
from types import FrameType
from typing import Self

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from minit.base.errors import MinitError
from minit.cli.commands.statscommand import read_interval
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.text.usagetext import SORT_KEYS, Row, screen_lines, sort_rows, table_lines, top_rows
from minit.cli.uuidfile import uuid_file_first_option
from minit.linux.loop import wait_readable
from minit.pods.stopping import running_pods
from minit.stage0.pods.poddirectory import find_pod
from minit.stage0.reports.stats import PodMeter, PodSample

_QUIT_KEYS = frozenset("qQ\x04\x1b")
_HEADING_LINE = 1

_STDIN, _STDOUT = 0, 1
_END_OF_INPUT = "\x04"
_CHARACTERS = 6
_NO_CHARACTER = b"\0"
_READ_BYTES = 64
_ESCAPE = b"\x1b"
# The codes of arrows and the like, ECMA-48; the rest of one follows its first byte at once.
_SEQUENCE = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|O.)")
_REST_SECONDS = 0.05


@click.command(cls=MinitCommand)
@click.option(
    "--interval",
    metavar="DURATION",
    default="1s",
    callback=read_interval,
    help="How long from one look to the next.  [default: 1s]",
)
@click.option("--no-stream", is_flag=True, help="Show one table after one interval, as without a terminal.")
@uuid_file_first_option
@click.argument("uuids", metavar="[UUID...]", nargs=-1)
@click.pass_obj
def top(invocation: Invocation, interval: float, no_stream: bool, uuids: tuple[str, ...]) -> None:
    """
    The keys c, m, p and n sort by processor, memory, processes and name; q quits, as the last line says. The traffic
    of a pod's network stands in the row of its first app. If standard output is no terminal, one table is printed after
    one interval.

    \b
      minit top
      minit top --interval=5s 2d381b2a

    """
    with _Meters(invocation, uuids) as meters:
        if _is_terminal() and not no_stream:
            _show_live(meters, interval)
            return
        before = {sample.uuid: sample for sample in meters.read()}
        time.sleep(interval)
        for line in table_lines(sort_rows(top_rows(meters.read(), before), "cpu"), invocation.terminal_width):
            invocation.say(line)


class _Meters:
    """The meters of all running pods, or of chosen ones; a context manager."""

    def __init__(self, invocation: Invocation, uuids: tuple[str, ...]) -> None:
        """Find the chosen pods; PodError for an unknown name, or a pod that does not run."""
        self._invocation = invocation
        self._stack = ExitStack()
        self._open: dict[str, tuple[PodMeter, ExitStack]] = {}
        self._chosen: frozenset[str] | None = None
        with ExitStack() as undo:
            undo.callback(self._close)
            for uuid in uuids:
                self._add(uuid)
            undo.pop_all()
        if uuids:
            self._chosen = frozenset(self._open)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def read(self) -> list[PodSample]:
        """Return a sample of each pod; pods that have ended, or cannot be looked at now, have none."""
        if self._chosen is None:
            for uuid in set(running_pods(self._invocation.caller)) - set(self._open):
                try:
                    self._add(uuid)
                except (OSError, MinitError):
                    continue  # it is ending, or broken: `minit list` says so, a live table cannot
        samples = []
        for uuid, (meter, stack) in list(self._open.items()):
            try:
                sample = meter.read()
            except (OSError, MinitError):
                continue
            if sample is None:
                stack.close()
                del self._open[uuid]
            else:
                samples.append(sample)
        return samples

    def _add(self, uuid: str) -> None:
        with ExitStack() as stack:
            pod = stack.enter_context(find_pod(self._invocation.data, uuid, lambda text: None))
            if pod.uuid in self._open:
                return
            meter = stack.enter_context(PodMeter(pod))
            self._open[pod.uuid] = (meter, stack.pop_all())

    def _close(self) -> None:
        for _, stack in self._open.values():
            stack.close()
        self._open.clear()


def _show_live(meters: _Meters, interval_seconds: float) -> None:
    """Show the table until the user quits."""
    console = Console(highlight=False, markup=False)
    by = SORT_KEYS["c"]
    before: dict[str, PodSample] = {}
    rows: list[Row] = []
    due = time.monotonic()
    with _Keys() as keys, Live(console=console, screen=True, auto_refresh=False, transient=True) as live:
        while True:
            if time.monotonic() >= due:
                samples = meters.read()
                rows = top_rows(samples, before)
                before = {sample.uuid: sample for sample in samples}
                due = time.monotonic() + interval_seconds
            live.update(_screen(console, sort_rows(rows, by), by), refresh=True)
            for key in keys.wait(max(0.0, due - time.monotonic())):
                if key in _QUIT_KEYS:
                    return
                by = SORT_KEYS.get(key, by)


def _screen(console: Console, rows: list[Row], by: str) -> Text:
    lines = screen_lines(rows, by, console.size.width, console.size.height)
    text = Text(no_wrap=True, overflow="crop")
    styles = {_HEADING_LINE: "reverse", console.size.height - 1: "dim"}
    for number, line in enumerate(lines):
        style = styles.get(number, "")
        text.append(line.ljust(console.size.width) if number == _HEADING_LINE else line, style=style)
        if number < len(lines) - 1:
            text.append("\n")
    return text


def _is_terminal() -> bool:
    """Return whether the command's output is seen on a terminal."""
    return os.isatty(_STDOUT)


class _Keys:
    """
    Keys as they are pressed, neither shown nor kept until the end of a line; a context manager.

    Ctrl-C stays what it is, Ctrl-Z is a key. A new size of the window ends a wait, too. Without a terminal as standard
    input there are no keys.
    """

    def __init__(self) -> None:
        self._settings: list[object] | None = None
        self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        if os.isatty(_STDIN):
            self._settings = termios.tcgetattr(_STDIN)
            tty.setcbreak(_STDIN)
            changed = termios.tcgetattr(_STDIN)
            # A stop would leave the terminal like this to the shell.
            changed[_CHARACTERS][termios.VSUSP] = _NO_CHARACTER
            termios.tcsetattr(_STDIN, termios.TCSADRAIN, changed)
        self._old_handler = signal.signal(signal.SIGWINCH, self._on_resize)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGWINCH, self._old_handler)
        if self._settings is not None:
            try:
                termios.tcsetattr(_STDIN, termios.TCSADRAIN, self._settings)  # type: ignore[arg-type]
            except termios.error:
                pass  # the terminal is gone
        for fd in self._wake:
            os.close(fd)

    def wait(self, seconds: float) -> str:
        """
        Return the keys pressed by then without those of several bytes, such as arrows.

        It is empty if there were none, the window has another size now, or a day is over. The end of the
        input, by a hang-up or Ctrl-D, is the key Ctrl-D.
        """
        ready = wait_readable([self._wake[0], *([] if self._settings is None else [_STDIN])], seconds)
        if self._wake[0] in ready:
            os.read(self._wake[0], 64)
        if _STDIN not in ready:
            return ""
        try:
            data = os.read(_STDIN, _READ_BYTES)
            if data.endswith(_ESCAPE) and wait_readable([_STDIN], _REST_SECONDS):
                data += os.read(_STDIN, _READ_BYTES)
        except OSError:  # the terminal is gone
            return _END_OF_INPUT
        return _SEQUENCE.sub(b"", data).decode("utf-8", "replace") if data else _END_OF_INPUT

    def _on_resize(self, number: int, frame: FrameType | None) -> None:
        try:
            os.write(self._wake[1], b"\0")
        except BlockingIOError:
            pass  # there is one already
