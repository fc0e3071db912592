"""
The kernel's packet filter: tables of nf_tables that belong to one pod, one of its interfaces or a network.

Built-in plugins call it for their links, `minit/network/setup.py` for forwarded ports, and `gc` to delete the tables.
Read `tables.py` first, which names them.
"""
