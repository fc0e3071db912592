"""
The commands of `minit`, a module for each subject.

The tables of `commandgroups.py` and `machinegroup.py` name the commands. A command calls `minit.pods`, `minit.stage0`
or `minit.image`, and shows the result by `minit.cli.text`. The commands of a machine (`machinegroup.py`) share no
module with a command that imports images or rich. Read `podcommands.py` first.
"""
