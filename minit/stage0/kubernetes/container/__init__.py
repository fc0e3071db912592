"""
One container of a Kubernetes pod: command, environment, mounts, security, probes.

`pods.py` above reads each container by it. Read `containers.py` first.
"""
