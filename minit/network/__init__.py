"""
The networks of a pod on the host: plugins of the CNI and built-in ones, forwarded ports, and undoing all of it.

The network helper sets networks up and `gc` tears them down; PID 1 never comes here. Read `setup.py` first.
"""
