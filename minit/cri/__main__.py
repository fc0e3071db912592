"""The daemon as a program, which the command `cri` executes with its settings as JSON."""

from __future__ import annotations

import sys
from pathlib import Path

from minit.base.errors import EXIT_FAILURE, MinitError, describe
from minit.base.harmless import harmless
from minit.cri.daemon import Settings, serve
from minit.cri.sandboxcalls import UsualSandbox
from minit.manifest.reader import Node, read_json


def main() -> int:
    """Serve until the end, and return the exit code."""
    try:
        serve(_read(read_json(sys.argv[1].encode(), "settings")), _note)
    except (MinitError, OSError) as error:
        _note(describe(error))
        return EXIT_FAILURE
    return 0


def _read(node: Node) -> Settings:
    return Settings(
        data=Path(node["data"].absolute_path()),
        socket=Path(node["socket"].absolute_path()),
        program=node["program"].each(Node.string),
        local_config=node["local_config"].string(),
        system_config=node["system_config"].string(),
        stream_address=node["stream_address"].string(),
        stream_port=node["stream_port"].integer(0, 65535),
        usual=UsualSandbox(
            network=node["network"].optional(Node.string),
            waits_for_cni=node["waits_for_cni"].boolean(),
            stage1_path=node["stage1_path"].optional(Node.string),
        ),
        cdi_directories=tuple(map(Path, node["cdi_directories"].each(Node.absolute_path))),
        runtime_handlers=node["runtime_handlers"].each(Node.string),
    )


def _note(text: str) -> None:
    try:
        print(f"cri: {harmless(text)}", file=sys.stderr, flush=True)
    except OSError:
        pass  # nobody reads it any more


if __name__ == "__main__":
    sys.exit(main())
