"""
Waiting for children, and the record of how they ended; nothing else in PID 1 waits.

PID 1 calls it, and a machine as it ends. Read `reaper.py` first.
"""
