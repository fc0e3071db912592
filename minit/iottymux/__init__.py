"""
The sidecars of apps, which read the apps' output; the process that forks sidecars; and the attaching client.

PID 1 calls `spawner.py`. Read `sidecar.py` first. Clients attach to the streams of `mux.py`; each of `peer.py`,
`output.py` and `input.py`, `clients.py`, `mux.py` knows only modules before it. The entrypoint `attach` calls
`attachclient.py`, which uses the modules of the caller; no pod runs this part.
"""
