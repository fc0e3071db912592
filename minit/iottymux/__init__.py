"""
The sidecars of apps, which read what apps write; the process that forks them; and the client that attaches to them.

PID 1 calls `spawner.py`, the launcher calls `attach/`. Read `sidecar.py` first, then `streams/` for what clients get.
"""
