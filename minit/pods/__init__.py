"""
The service of pods: a request of a caller is a value of `requests`, and a function here carries the request out.

The command, Kubernetes' YAML and the Container Runtime Interface translate into these values, and know nothing of each
other. Read `requests.py` first.
"""
