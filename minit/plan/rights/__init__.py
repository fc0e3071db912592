"""
The rights of an app: its limits, isolators, filters of system calls, protected paths and users.

Planning alone calls it, but for the filters, which the launcher compiles. Read `isolators.py` first.
"""
