"""Stands in for the package's own module, which loads all of pyroute2: a stage1 uses the classes of messages."""
