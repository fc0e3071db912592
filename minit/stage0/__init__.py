"""
The host side of rkt's contract: images, the life-cycle of pod directories, and calls of a stage1.

`minit.cli` calls it. A stage1 is a black box to it, behind the entrypoints that its image declares.

Read `pods/poddirectory.py` first: a pod's state is where its directory lies and who holds its lock.
"""
