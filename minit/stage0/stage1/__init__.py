"""
Calls of a stage1: which entrypoints its image declares, with which words each is called, and what it answers.

Whatever acts on a pod calls it. What is behind an entrypoint is not its business. Read `entrypoints.py` first.
"""
