"""
The commands on pods that there are: list, status, stop, rm, logs, cp, export, …

Read `podcommands.py` first.
"""
