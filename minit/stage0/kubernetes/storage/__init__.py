"""
Volumes of a Kubernetes pod, and the files that some of them begin with.

`pods.py` above calls it. Read `podvolumes.py` first.
"""
