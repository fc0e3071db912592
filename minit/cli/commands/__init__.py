"""
The commands of `minit`, in a folder for each group of them, and what several of them share.

The tables of `commandgroups.py` and `machinegroup.py` name them. They call `minit.stage0` and `minit.image`, and show
what comes of it by `minit.cli.text`. Commands on pods are in `run/`, where they start, in `pods/` and in `apps/`;
`images/` and `machines/` have those that make these. Read `pods/podcommands.py` first.
"""
