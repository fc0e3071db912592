"""
Reports about pods, from outside: logs, events, use of resources, and diagnoses.

The commands that look at pods call these modules, which change nothing. Read `podtraces.py` first.
"""
