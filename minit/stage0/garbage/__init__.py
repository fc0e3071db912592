"""
Garbage collection: ended pods, with the traces of stage1 on the host, images, trees and named volumes.

`gc`, `rm` and `image gc` call these modules. Trees and images of pods stay. Read `podgc.py` first.
"""
