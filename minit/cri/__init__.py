"""
A Kubernetes node's runtime: the Container Runtime Interface on a socket, over the command's own words.

A sandbox is a mutable pod of a data directory of its own, a container one of its apps. The daemon translates each call
into a command of minit, which another process carries out; it keeps what it was asked, and answers lists from memory.
The command `cri` starts it. Read `daemon.py` first, then `sandboxcalls.py`.
"""
