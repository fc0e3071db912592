"""
gRPC over HTTP/2 on a socket: calls of one message each, or with a stream of answers, and their statuses.

It knows nothing of the CRI: whoever serves gives it methods by their names. Read `server.py` first, then `framing.py`.
"""
