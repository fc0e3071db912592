"""
Clients of DHCP, for pods and machines, and the leases of pods.

Read `client.py` first, with messages in `message.py`; for IPv6 there are `client6.py` and `message6.py`.
"""
