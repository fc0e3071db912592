"""
The output of commands: lists, reports, logs and progress, as text byte for byte like rkt's, or as JSON.

The commands call it with values. It finds out nothing itself. Read `podtext.py` first.
"""
