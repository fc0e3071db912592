"""
The mounts of a root: every place is found inside it, whoever changes it meanwhile, and mounted by descriptor.

PID 1, the processes of apps and the launcher call it. The mounts come planned. Read `applymounts.py` first.
"""
