"""
The kernel's packet filter: tables of nf_tables for a pod, an interface of a pod or a network.

Built-in plugins call it for links, `minit/network/setup.py` for forwarded ports, and `gc` to delete the tables.
Read `tables.py` first, which has the names.
"""
