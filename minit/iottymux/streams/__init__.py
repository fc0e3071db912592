"""
The streams of an app that clients attach to, in its sidecar: who gets what an app writes, and whose input it reads.

The sidecar calls `mux.py`, and PID 1 makes the descriptors that it works with. Read `peer.py` first: each module after
it knows those before, in the order `peer`, `output` and `input`, `clients`, `mux`.
"""
