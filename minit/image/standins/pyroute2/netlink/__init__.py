"""The package of a stand-in; pyroute2.netlink itself is not replaced."""
