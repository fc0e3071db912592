"""
The life of an app as values: environment, sockets, health, hooks, restarts and stop.

Planning decides the values, and PID 1 and the health helper read the result. Read `restart.py` first.
"""
