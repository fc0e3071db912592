"""Pods as Kubernetes writes them in YAML, and what of them becomes a pod of this machine; all pure."""
