"""
Pods as Kubernetes writes them in YAML, and the pod manifests and mounts that they become.

`minit play` and `minit generate kube` call it, and it touches nothing. Read `documents.py` first.
"""
