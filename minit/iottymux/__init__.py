"""
The sidecars of apps, which read the apps' output; the process that forks them; and the client that attaches to them.

PID 1 calls `spawner.py`. Read `sidecar.py` first. Clients attach to the streams of `mux.py`; each of `peer.py`,
`output.py` and `input.py`, `clients.py`, `mux.py` knows only modules before it. The entrypoint `attach` calls
`attachclient.py`, which uses the modules of the caller; no pod runs them.
"""
