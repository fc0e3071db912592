"""
`make pictures`: draws docs/pictures/, screens of a real terminal in which a shell runs minit.

Every picture is a screen after the last of its commands. Pods are in a network namespace of the caller's, and their
directory is removed at the end.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pyte
from pyte.screens import Char
from rich.console import Console
from rich.style import Style
from rich.text import Text

from tests.support.machine import X86_64
from tests.support.terminal import Terminal

DIRECTORY = Path("docs/pictures")
_TIMEOUT_SECONDS = 300
_PROMPT = "# "
# The prompt tells the window's title, which has the number of the prompt.
_PS1 = f"{_PROMPT}\\[\\e]0;prompt $prompts\\a\\]"
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


class Picture(NamedTuple):
    """
    A screen of so many columns and rows.

    Steps are what is typed and what the screen matches then, None for the shell's next prompt. The picture is taken
    after `steps`; those of `before` and `after` are not seen.
    """

    name: str
    title: str
    columns: int
    rows: int
    steps: tuple[tuple[str, str | None], ...]
    before: tuple[tuple[str, str | None], ...] = ()
    after: tuple[tuple[str, str | None], ...] = ()


def _commands(*lines: str) -> tuple[tuple[str, None], ...]:
    return tuple((f"{line}\n", None) for line in lines)


PICTURES = (
    Picture(
        name="demo",
        title="A pod of three apps",
        columns=110,
        rows=40,
        steps=_commands(
            "minit run -d --name=demo --port=http:8080 web.aci client.aci script.aci",
            "minit list",
            "busybox wget -qO- http://127.0.0.1:8080/",
            "minit enter --app=web demo /bin/busybox ps -o pid,user,args",
            "minit logs demo",
            "minit stop demo",
        ),
        after=_commands("minit rm demo"),
    ),
    Picture(
        name="top",
        title="minit top",
        columns=80,
        rows=12,
        before=_commands(
            "minit run -d web.aci --memory=64m --cpu=1500m box.aci --name=worker"
            " -- -c 'while :; do busybox usleep 3000; done'",
            "minit run -d --net=none box.aci --name=database --memory=128m --cpu=500m -- -c 'exec busybox sleep 9999'",
            "minit run -d --net=none box.aci --name=a-name-as-long-as-that-of-a-service-may-be"
            " -- -c 'while :; do busybox usleep 30000; done'",
        ),
        steps=(("minit top\n", r"4 apps, (?!0\.0%).*keys: "),),
        after=(("q", None), *_commands("minit stop --all --force", "minit rm --all")),
    ),
    Picture(
        name="diagnose",
        title="Why a pod failed",
        columns=110,
        rows=40,
        steps=_commands(
            "minit run --net=none --name=failed box.aci --annotation=minit/restart=on-failure \\\n"
            "    --annotation=minit/restart-limit=2 -- -c 'echo no database; exit 3'",
            "minit diagnose failed | head -n 14",
        ),
        after=_commands("minit rm failed"),
    ),
    Picture(
        name="machine",
        title="A machine that is one pod",
        columns=110,
        rows=40,
        before=_commands(
            "minit cat-manifest $(minit prepare box.aci --name=hello"
            " -- -c 'echo hello from $(busybox uname -n); exec busybox sleep 9999') > pod.json"
        ),
        steps=(
            *_commands("minit init build --manifest pod.json --output machine.cpio.gz"),
            (
                "qemu-system-x86_64 -nodefaults -display none -serial stdio -no-reboot -m 288 -kernel vmlinuz \\\n"
                "    -initrd machine.cpio.gz -append 'console=ttyS0 no_timer_check panic=-1 quiet minit.console'\n",
                r"Enter for a prompt.*hello from",
            ),
            ("\n", r"minit> $"),
            ("app list\n", r"running\s+minit> $"),
            ("poweroff\n", None),
        ),
    ),
)
_IMAGES = (
    "web.aci --rootfs site --port name=http,protocol=tcp,port=8080 -- httpd -f -v -p 8080 -h /www",
    "client.aci -- sh -c 'until busybox wget -qO- http://127.0.0.1:8080/ 2>/dev/null; do busybox usleep 9999; done'",
    "script.aci -- sh -c 'for n in 1 2 3; do echo \"step $n of $AC_APP_NAME\"; done'",
    "box.aci --exec /bin/sh",
)


class _Shell:
    """A shell in a terminal, and the screen that a person sees."""

    def __init__(self, terminal: Terminal, directory: Path, columns: int, rows: int) -> None:
        self.screen = pyte.Screen(columns, rows)
        self._terminal, self._stream = terminal, pyte.ByteStream(self.screen)
        self._prompts = 0
        environment = {
            "BASH_FUNC_minit%%": f'() {{ command minit --dir={directory}/data "$@"; }}',
            "HOME": str(directory),
            "LANG": "C.UTF-8",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PROMPT_COMMAND": "prompts=$((prompts + 1))",
            "PS1": _PS1,
            "PS2": "",
            "TERM": "xterm-256color",
        }
        command = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
        self._process = subprocess.Popen(command, cwd=directory, env=environment, **terminal.options)
        self._wait_for(None)

    def take(self, steps: Iterable[tuple[str, str | None]]) -> None:
        """Type and wait, step by step."""
        for text, pattern in steps:
            self._terminal.type(text.encode())
            self._wait_for(pattern)

    def leave(self) -> None:
        """End the shell."""
        self._terminal.type(b"exit\n")
        self._terminal.finish(self._process)

    def _wait_for(self, pattern: str | None) -> None:
        if pattern is None:
            self._prompts += 1

        def look() -> bool:
            self._stream.feed(self._terminal.seen)
            self._terminal.seen = b""
            if pattern is None:
                return self.screen.title == f"prompt {self._prompts}"
            return re.search(pattern, "\n".join(self.screen.display).rstrip() + " ", re.DOTALL) is not None

        if not self._terminal.read_until(look, _TIMEOUT_SECONDS):
            shown = "\n".join(self.screen.display)
            raise SystemExit(f"pictures: waited for {pattern or 'a prompt'!r}, saw:\n{shown}")


def main() -> None:
    """Draw the pictures named by the arguments, all of them by default."""
    wanted = sys.argv[1:] or [picture.name for picture in PICTURES]
    kernels = sorted(X86_64.directory.glob("**/boot/vmlinuz-*"))
    if not kernels or shutil.which(X86_64.qemu[0]) is None:
        print("pictures: no qemu or no kernel for it, so that of a machine stays: make kernel")
        wanted = [name for name in wanted if name != "machine"]
    with tempfile.TemporaryDirectory(prefix="minit-pictures.", dir="/var/tmp") as name:
        directory = Path(name)
        (directory / "site/www").mkdir(parents=True)
        (directory / "site/www/index.html").write_text("hello from a pod without systemd\n")
        if kernels:
            (directory / "vmlinuz").symlink_to(kernels[-1])
        build = "minit image build --from-host /bin/busybox --from-host /bin/sh --exec /bin/busybox --output"
        # The first use of minit has more to tell.
        first = (*(f"{build} {words}" for words in _IMAGES), "minit run --net=none --rm box.aci -- -c :")
        try:
            take(Picture(name="", title="", columns=200, rows=50, steps=_commands(*first)), directory)
            for picture in PICTURES:
                if picture.name in wanted:
                    text = draw(take(picture, directory), picture.title)
                    (DIRECTORY / f"{picture.name}.svg").write_text(text)
                    print(f"{DIRECTORY / picture.name}.svg: {len(text)} bytes", flush=True)
        finally:
            program = str(Path(sys.executable).parent / "minit")
            subprocess.run(
                [program, f"--dir={directory}/data", "rm", "--all", "--force"], stdout=subprocess.DEVNULL, check=True
            )


def take(picture: Picture, directory: Path) -> list[list[Char]]:
    """Return the rows that a person sees who types the steps of a picture in a terminal; none below the last text."""
    with Terminal(picture.rows, picture.columns) as terminal:
        shell = _Shell(terminal, directory, picture.columns, picture.rows)
        shell.take((*picture.before, ("clear\n", None), *picture.steps))
        screen = shell.screen
        rows = [[screen.buffer[row][column] for column in range(screen.columns)] for row in range(screen.lines)]
        while rows and "".join(char.data for char in rows[-1]).strip() in ("", _PROMPT.strip()):
            rows.pop()
        shell.take(picture.after)
        shell.leave()
    return rows


def draw(rows: list[list[Char]], title: str) -> str:
    """Return the SVG of a screen, which loads no font of the network's."""
    console = Console(
        record=True, file=io.StringIO(), width=len(rows[0]), force_terminal=True, color_system="truecolor"
    )
    for row in rows:
        text = Text(no_wrap=True, end="\n")
        for style, chars in groupby(row, _style):
            text.append("".join(char.data for char in chars), style)
        console.print(text)
    svg = console.export_svg(title=title, unique_id="minit")
    return "".join(
        f"{line.rstrip()}\n"
        for line in _FONTS.sub("", svg).replace("Fira Code, ", "").replace("arial", "sans-serif").splitlines()
    )


def _style(char: Char) -> Style:
    return Style(
        color=_colour(char.fg),
        bgcolor=_colour(char.bg),
        bold=char.bold,
        italic=char.italics,
        underline=char.underscore,
        reverse=char.reverse,
    )


def _colour(name: str) -> str | None:
    """Return the colour by rich's name: that of pyte is another for yellow, and hexadecimal digits for others."""
    if name == "default":
        return None
    if re.fullmatch(r"[0-9a-f]{6}", name):
        return f"#{name}"
    return name.replace("brown", "yellow").replace("bright", "bright_")


if __name__ == "__main__":
    main()
