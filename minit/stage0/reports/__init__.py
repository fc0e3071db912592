"""
Reports about pods, from outside: logs, events, use of resources, and diagnoses.

The commands that look at pods call it. It changes nothing. Read `podtraces.py` first.
"""
