"""
The disk that a machine has booted from: its partitions, the last of which grows, and the two slots.

Read `slots.py` first.
"""
