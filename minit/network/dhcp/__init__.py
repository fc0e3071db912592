"""
Clients of DHCP, for pods and machines, and the leases of pods.

Read `client.py` first, whose messages are in `message.py`; for IPv6 these are `client6.py` and `message6.py`.
"""
