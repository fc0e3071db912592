"""The first step of the `minit` command: `minit -- COMMAND` goes its own way, before anything large is imported."""

from __future__ import annotations

import sys
from typing import NoReturn

_INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command line of this process."""
    try:
        _run(sys.argv[1:])
    except KeyboardInterrupt:
        # In the middle of an import; whatever runs knows what to do itself.
        sys.exit(_INTERRUPTED)


def _run(words: list[str]) -> NoReturn:
    # Options may stand before it, but no command does.
    if "--" in words and words[0].startswith("--"):
        from minit import containerinit

        code = containerinit.main(words)
        if code is not None:
            sys.exit(code)
    # The word of minit/pods/hand.py.
    if words == ["__hand"]:
        from minit.cli.main import settle
        from minit.pods import hand

        settle()
        hand.serve(hand.carry_out)
        sys.exit(0)
    from minit.cli.main import main as run_command_line

    run_command_line()


if __name__ == "__main__":
    main()
