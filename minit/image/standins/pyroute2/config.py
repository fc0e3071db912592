"""Stands in for pyroute2.config, which loads multiprocessing: the settings that the classes of messages look at."""

AF_BRIDGE = 7
AF_NETLINK = 16

data_plugins_pkgs: list[object] = []
data_plugins_path: list[str] = []
