"""
The programs stage0 executes; each parses its arguments, calls one function and maps errors to an exit code.

The cyclic collector stays off while they import and set up, which saves a twentieth of the start; what goes on
to live long turns it on again.
"""

import _signal
import gc

gc.disable()
# Until an entrypoint decides about it, a Ctrl-C ends it without a traceback; one that was ignored stays ignored.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
# The image's launcher blocked it for the time before this line.
_signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_signal.SIGINT,))
