"""
Address management of the built-in plugins: host-local, static and dhcp.

Each is a plugin as well: it is asked by ADD, DEL and CHECK, and answers with addresses and routes. Read `hostlocal.py`
first.
"""
