"""
A client of DHCP for IPv4: for the interfaces of a machine, and for those of pods.

Read `client.py` first. `message.py` has what it says and hears, `addressprobe.py` asks whether an address is free.
"""
