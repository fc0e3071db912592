"""
References in a Kubernetes file: to ConfigMaps and Secrets, and to fields of the Pod and resources of its containers.

Variables and volumes have them. Read `podfields.py` first.
"""
