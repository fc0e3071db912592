"""
An app's root as values: its mounts, volumes, devices and the files that are written for it.

The launcher opens what is planned here and PID 1 mounts it. Read `mountoperations.py` first.
"""
