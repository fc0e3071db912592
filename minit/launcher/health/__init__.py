"""
Checks of the health of apps, by a process of the host that lives as long as the pod.

The start of a pod and `app/add` start it. PID 1 acts on what it finds. Read `healthhelper.py` first.
"""
