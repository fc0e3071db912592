"""
The programs stage0 executes; each parses its arguments, calls one function and maps errors to an exit code.

The cyclic collector stays off while they import and set up, which saves a twentieth of the start; what goes on
to live long turns it on again.
"""

import gc

gc.disable()
