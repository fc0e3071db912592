"""
YAML and its objects, read so that nothing is passed over.

All of `minit.stage0.kubernetes` reads by it. Read `fields.py` first.
"""
