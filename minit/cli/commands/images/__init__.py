"""
The commands on images: the groups `image` and `stage1`, and fetch.

Read `imagecommands.py` first.
"""
