"""
A client of DHCP for IPv6 (RFC 8415), for the interfaces of a machine.

Read `client.py` first. `message.py` has what it says and hears.
"""
