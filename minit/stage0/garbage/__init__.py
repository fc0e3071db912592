"""
Collecting what nobody needs any more: pods that ended, with what their stage1 left on the host, images and trees.

`gc`, `rm` and `image gc` call it. Trees and images of pods stay. Read `podgc.py` first.
"""
