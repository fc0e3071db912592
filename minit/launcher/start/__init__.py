"""
The start of a pod: what stage0 prepared is read, planned and made ready, PID 1 is cloned, and its end is waited for.

The `run` entrypoint calls it, `app/add` and machines use parts of it. Read `launch.py` first.
"""
