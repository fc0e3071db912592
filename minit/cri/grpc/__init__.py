"""
gRPC over HTTP/2 on a socket: calls with one message each, or with a stream of answers, and the statuses of calls.

The folder knows nothing of the CRI: the caller passes methods by name. Read `server.py` first, then `framing.py`.
"""
