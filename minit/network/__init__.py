"""
The networks of a pod on the host: plugins of the CNI, programs or built in, forwarded ports, and the removal of all.

The network helper sets networks up and `gc` tears them down; PID 1 never runs this code. The plugins of `builtin/` use
`packetfilter/`, `netlink/` and `dhcp/`. Read `setup.py` first.
"""
