"""The package of a stand-in; pyroute2.netlink.rtnl.ifinfmsg itself is not replaced."""
