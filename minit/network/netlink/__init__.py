"""
The kernel's networks by netlink(7): links, addresses and routes, tables of the packet filter, tracked connections.

The folder makes no decisions. Plugins, firewall and machines call it. Read `transport.py` first.
"""
