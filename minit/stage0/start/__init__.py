"""
From images and options to a pod that runs: a directory is prepared, its overlays are mounted, and stage1 takes over.

The commands that make pods call it, and so does the one that makes machines. Read `newpod.py` first, then `run.py`.
"""
