"""
The commands on apps of running pods: the group `app`, enter, attach, and top.

Read `appcommands.py` first.
"""
