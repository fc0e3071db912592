"""
A machine with minit as its first program: the work of a launcher and of a host, where there is none.

Only `entrypoints/init.py` calls it. Read `init.py` first, then `helper.py` and `duties.py`. Of the disk read `slots.py`
first, of updates `update.py`, of the network `network.py`, and of the time `timeclient.py`.
"""
