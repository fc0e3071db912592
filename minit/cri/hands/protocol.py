"""
What the daemon and its hands, processes of the command that carry out one command line after the other, say.

A hand has a socket of messages as its standard input. A request is empty and has four or five descriptors: a file with
the words of the command line, each with a NUL behind it, standard input, output and error of the command, and one that
is held until the command has ended. The answer has the exit code, what kind of failure that stands for, and whether the
hand ends with it.
"""

from __future__ import annotations

WORD = "__hand"
"""The only word of a command line that makes a process of the command a hand."""
CODE = "code"
KIND = "kind"
IS_LAST = "is_last"
