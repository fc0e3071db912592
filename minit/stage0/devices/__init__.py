"""
Devices of the host that an app is to have, by their paths or by the names of their vendors.

The option --device and `minit cri` call it. Read `nodes.py` first.
"""
