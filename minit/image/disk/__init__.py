"""
Disks that machines boot from: two slots, each with a file system for the firmware and a root, and one for data.

Read `disk.py` first.
"""
