"""
Plugins of the CNI: finding them, asking them one after the other, and being one, whether they are programs or built in.

`minit/network/setup.py` and `minit/network/teardown.py` call it, and the entrypoint `cni`. Read `pluginlist.py` first.
"""
