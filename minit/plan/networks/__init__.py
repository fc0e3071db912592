"""
The networks of a pod as values: which it joins, the ports that are forwarded, and what apps get of them.

Planning decides what the network helper then sets up. Read `networkplan.py` first.
"""
