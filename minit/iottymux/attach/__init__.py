"""
The client of a sidecar: the caller's terminal and streams in front of those of an app, until either side ends.

The `attach` entrypoint calls it, and nothing of it runs in a pod. Read `client.py` first.
"""
