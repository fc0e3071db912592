"""
The clock of a machine, which may have lost its time with its power: from a chip, from servers of NTP, and to both.

Read `timeclient.py` first, which asks servers; `starttime.py` is what a machine does before there is a network.
"""
