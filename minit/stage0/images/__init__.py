"""
Images: the choice of one by a user's words, the store of ACIs, and rendered images in the tree store, as in rkt.

The rest of stage0 and the command call these modules, which know no pods. Read `store.py` first.
"""
