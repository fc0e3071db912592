"""
The actions on one app: add, start, stop, remove, limit, enter, attach, copy and export.

The commands on apps call this folder with a pod that `minit.stage0.pods` has found. Read `appadd.py` first.
"""
