"""
Files and directories of the host that survive a crash, stay within bounds, and become entries of archives.

All of stage0 calls these modules, which know nothing of images and pods. Read `durable.py` first.
"""
