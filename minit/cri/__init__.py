"""
A Kubernetes node's runtime: the Container Runtime Interface on a socket, over the service of pods.

A sandbox is a mutable pod in a data directory of its own, a container is an app of the pod. The daemon translates each
call into a request that another process carries out. The daemon keeps the requested configurations, and answers
lists from memory. The command `cri` starts the daemon. Read `daemon.py` first, then `sandboxcalls.py`.
"""
