"""
The machine's network: its interfaces as machine.toml has them, brought up as they appear, and their leases kept.

Read `machinenetwork.py` first, then `connection.py`, which is one interface.
"""
