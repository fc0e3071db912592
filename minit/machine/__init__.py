"""
A machine of which minit is the first program: the work of a launcher and of a host, where there is none.

Only `entrypoints/init.py` calls it. Read `init.py` first.
"""
