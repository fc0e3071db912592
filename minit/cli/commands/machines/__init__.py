"""
The group `init`, on a host and on a machine that minit boots, and other commands of such a machine.

Read `initcommands.py` first.
"""
