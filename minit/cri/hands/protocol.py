"""
What the daemon and its hands, processes of the command that carry out one command line after the other, say.

A hand has a socket of messages as its standard input. The request has the command line, and three or four descriptors:
standard input, output and error of the command, and one that is held until the command has ended. The answer has the
exit code, and tells whether the hand ends with it.
"""

from __future__ import annotations

WORD = "__hand"
"""The only word of a command line that makes a process of the command a hand."""
WORDS = "words"
CODE = "code"
IS_LAST = "is_last"
