"""
The programs stage0 executes; each parses its arguments, calls one function and maps errors to an exit code.

The cyclic collector stays off while they import and set up, which saves a twentieth of the start; what goes on
to live long turns it on again.
"""

import gc
import signal

gc.disable()
# Until an entrypoint decides about it, a Ctrl-C ends it without a traceback; one that was ignored stays ignored.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
# The image's launcher blocked it for the time before this line.
signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
