"""
A plugin of the CNI that writes down what it was given and does what its configuration says.

Installed by `install_plugin`, it runs by itself, with nothing of the project. Its configuration has `record`, a
directory, and for each command an action: `{"record": "/d", "ADD": {"print": {"dns": {}}, "exit": 0}}`. An action may
have `child` (leave a process behind that keeps the output open, its pid in `child`), `hang` (its pid in `hanging`),
`flood` (print for ever), `print` (a JSON value or, as a string, raw text), `signal` and `exit`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any


def install_plugin(directory: Path, name: str) -> Path:
    """Make this file the plugin `name` in `directory` and return it."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(f"#!{sys.executable} -ISB\n{Path(__file__).read_text()}")
    path.chmod(0o755)
    return path


def calls(record: Path) -> list[dict[str, Any]]:
    """Return what the plugins that record in `record` were given, in the order in which they ran."""
    return [json.loads(path.read_text()) for path in sorted(record.glob("call-*"))]


def main() -> None:
    """Be the plugin."""
    stdin = sys.stdin.buffer.read()
    config = json.loads(stdin)
    record = Path(config["record"])
    record.mkdir(exist_ok=True)
    call = {
        "argv": sys.orig_argv,
        "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "cwd": os.getcwd(),
        "descriptors": sorted(os.listdir("/proc/self/fd")),
        "environment": dict(os.environ),
        "network": os.readlink("/proc/self/ns/net"),
        "pid": os.getpid(),
        "session": os.getsid(0),
        "stderr": os.readlink("/proc/self/fd/2"),
        "stdin": stdin.decode(),
        "umask": os.umask(0),
    }
    number = len(list(record.glob("call-*")))
    (record / f"call-{number:03}").write_text(json.dumps(call))
    act(config.get(os.environ["CNI_COMMAND"], {}), record)


def act(action: dict[str, Any], record: Path) -> None:
    """Do what the configuration asks for."""
    if action.get("child"):
        child = os.fork()
        while child == 0:
            signal.pause()
        (record / "child").write_text(str(child))
    if action.get("hang"):
        # A name that appears is a file that is written.
        (record / "new").write_text(str(os.getpid()))
        (record / "new").rename(record / "hanging")
        signal.pause()
    while action.get("flood"):
        os.write(1, b"x" * 65536)
    if "print" in action:
        text = action["print"]
        os.write(1, (text if isinstance(text, str) else json.dumps(text)).encode())
    if "signal" in action:
        os.kill(os.getpid(), action["signal"])
    sys.exit(action.get("exit", 0))


if __name__ == "__main__":
    main()
