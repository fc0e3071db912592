"""
The devices of the host and their coming and going, by pyudev.

The helpers of the launcher and of a machine call it, never PID 1 of a pod. Read `lookup.py` first.
"""
