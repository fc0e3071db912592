"""
The actions on one app: add, start, stop, remove, enter and export it, or attach to it.

The commands about apps call it. Pods are found for it by `minit.stage0.pods`. Read `appadd.py` first.
"""
