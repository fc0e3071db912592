"""
The rights of an app: limits, isolators, filters of system calls, protected paths and users.

Only planning uses the folder, but for the filters, which the launcher compiles. Read `isolators.py` first.
"""
