"""
The streams of a kubelet: Exec, Attach and PortForward. Each is a connection of HTTP that becomes several byte streams.

Read `server.py` first, then `channels.py`. SPDY (`spdy.py`, `spdyframes.py`) and WebSockets (`websocket.py`) are two
implementations of channels. `remotecommand.py` and `portforward.py` know only channels.
"""
