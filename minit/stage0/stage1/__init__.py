"""
Calls of a stage1: the entrypoints of the image, the words of each call, and the answers.

All commands that act on a pod call these modules, for which an entrypoint is a black box. Read `entrypoints.py` first.
"""
