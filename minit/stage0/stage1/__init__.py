"""
Calls of a stage1: which entrypoints its image declares, with which words each is called, and what it answers.

Everything that acts on a pod calls it. The inside of an entrypoint is not its business. Read `entrypoints.py` first.
"""
