"""
Apps as PID 1 holds them: their states, processes, control groups and handlers, and the part of each in the pod.

The supervisor calls it, and the control socket reads it. Read `lifecycle.py` first, then `podapp.py` and `apprun.py`,
`starts.py` and `ends.py`.
"""
