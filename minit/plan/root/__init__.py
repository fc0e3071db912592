"""
An app's root as values: mounts, volumes, devices and written files.

The launcher opens the planned volumes and PID 1 mounts. Read `mountoperations.py` first.
"""
