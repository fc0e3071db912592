"""The per-app I/O sidecars: what reads an app's output, and the process that forks them."""
