"""
PID 1 of a pod: builds the root, starts the apps, and keeps records of them until the last one has ended.

The launcher forks PID 1, and on a machine PID 1 runs the same code; requests come by the control socket. Read `boot.py`
first, then `apps/lifecycle.py` and `supervisor.py`.
"""
