"""
Hands: processes of the command that carry out one command line after the other for the daemon.

Read `pool.py` first.
"""
