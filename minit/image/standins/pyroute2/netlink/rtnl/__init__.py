"""The package of a stand-in; pyroute2.netlink.rtnl itself is not replaced."""
