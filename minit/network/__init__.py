"""
The networks of a pod on the host: plugins of the CNI and built-in ones, forwarded ports, and undoing all of it.

The network helper sets networks up and `gc` tears them down; PID 1 never comes here. `plugins/` speaks `protocol/` with
programs and with the plugins of `builtin/`, which use `packetfilter/`, `netlink/` and `dhcp/`. Read `setup.py` first.
"""
