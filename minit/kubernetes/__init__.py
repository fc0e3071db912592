"""
Pods of Kubernetes' YAML, as requests to the service of pods; and pods of minit's, as YAML.

Read `documents.py` first.
"""
