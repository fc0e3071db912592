"""
Pod directories: their states and locks, their manifests, and what they say of a pod.

All that deals with pods calls it. It starts and stops nothing. Read `poddirectory.py` first.
"""
