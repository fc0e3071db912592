"""
The streams of a kubelet: Exec, Attach and PortForward, each a connection of HTTP that becomes several streams of bytes.

Read `server.py` first, then `channels.py`: SPDY (`spdy.py`, `spdyframes.py`) and WebSockets (`websocket.py`) are two
ways to have channels, of which `remotecommand.py` and `portforward.py` know nothing more.
"""
