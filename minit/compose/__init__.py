"""
Projects of compose files, as requests to the service of pods; the state of a project is in the labels of its pods.

Read `project.py` first.
"""
