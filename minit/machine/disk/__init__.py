"""
The disk that a machine has booted from: its partitions, and the last of them, which grows to the disk's end.

Read `partitions.py` first.
"""
