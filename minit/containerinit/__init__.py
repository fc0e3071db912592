"""
The init of a container that is not minit's own: `minit -- COMMAND`, in the place of tini or dumb-init.

Only `minit/__main__.py` calls it, before anything large is imported. Read `supervise.py` first.
"""
