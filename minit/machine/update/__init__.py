"""
Updates of a machine: another version, signed, written to the slot that does not run.

Read `install.py` first.
"""
