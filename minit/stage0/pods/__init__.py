"""
Pod directories: states and locks, manifests, and statuses.

Every user of pods calls this folder, which starts and stops nothing. Read `poddirectory.py` first.
"""
