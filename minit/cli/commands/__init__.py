"""
The commands of `minit`, a module for each group of them, and what several of them share.

The tables of `commandgroups.py` and `machinegroup.py` name them. They call `minit.stage0` and `minit.image`, and show
what comes of it by `minit.cli.text`. Read `podcommands.py` first.
"""
