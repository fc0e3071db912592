"""Lets `python -m minit` be the `minit` command."""

from __future__ import annotations

from minit.cli.main import main

if __name__ == "__main__":
    main()
