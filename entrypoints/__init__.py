"""The programs stage0 executes; each parses its arguments, calls one function and maps errors to an exit code."""
