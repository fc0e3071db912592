"""
The commands that make pods and start them: run, prepare, run-prepared, play, start.

Read `runcommands.py` first, then `podrequest.py`, which makes requests to the service of them.
"""
