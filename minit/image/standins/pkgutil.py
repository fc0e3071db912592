"""Stands in for pkgutil, by which pyroute2 looks for plugins that a stage1 does not have."""
