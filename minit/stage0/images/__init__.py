"""
Images: which one a user means, the store of ACIs, and rendered images in the tree store, as rkt keeps them.

The rest of stage0 and the command call it. It knows no pods. Read `store.py` first.
"""
