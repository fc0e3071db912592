"""
Output of apps: pipes, terminals and sockets for attached clients, which PID 1 holds, and the sidecars that read them.

The supervisor starts and renews sidecars by it; their own program is `minit.iottymux`. Read `streams.py` first.
"""
