"""
The appc manifests, and the configurations of machines and networks: JSON and TOML to immutable values.

Everybody may call it, and it touches nothing. Read `reader.py` first.
"""
