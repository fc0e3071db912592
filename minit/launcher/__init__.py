"""
The host side of a pod: loads and plans the pod, makes control groups and PID 1, waits, and reaches into the pod later.

The entrypoints call the launcher, one module for each. The launcher runs with all rights of the host, and hands PID 1
descriptors.

Read `start/launch.py` first.
"""
