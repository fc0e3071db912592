"""
The life of an app as values: its environment, sockets, logs, readiness, health, restarts and stop.

Planning alone decides them, and PID 1 and the health helper read them. Read `restart.py` first.
"""
