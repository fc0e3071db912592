"""
A process of an app from fork to execve: streams, sockets and console in place, and no more privileges than its own.

PID 1 calls it in processes that it has just forked, and so do programs that are entered. Read `child.py` first.
"""
