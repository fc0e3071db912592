"""
PID 1 of a pod: builds its root, starts the apps, and keeps their records until the last one has ended.

The launcher forks it, and machines have it as a part of theirs; requests reach it on its control socket.
Read `boot.py` first, then `apps/lifecycle.py` and `supervisor.py`.
"""
