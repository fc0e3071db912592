"""
The service of pods: what a caller wants is a value of `requests`, and a function here carries the value out.

The command, Kubernetes' YAML and the Container Runtime Interface translate their words into these values, and know
nothing of each other. Read `requests.py` first.
"""
