"""
The host side of a pod: loads and plans it, makes its control groups and PID 1, waits, and reaches into it later.

The entrypoints call it, one module for each of them. It runs with all rights of the host, and hands PID 1 descriptors.

Read `start/launch.py` first.
"""
