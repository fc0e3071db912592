"""
Waiting for children, and records of ended apps; nothing else in PID 1 waits.

PID 1 calls these modules, and a machine at the end. Read `reaper.py` first.
"""
