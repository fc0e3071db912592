"""
From images and options to a running pod: stage0 prepares a directory, mounts overlays, and stage1 takes over.

The commands that make pods call this folder, and so does the command that makes machines. Read `newpod.py` first, then
`run.py`.
"""
