"""
Output of apps: pipes, terminals and sockets for attached clients, which PID 1 holds, and the sidecars that read them.

The supervisor starts and renews sidecars by it; what these do is in `minit.iottymux`. Read `streams.py` first.
"""
