"""
The networks of a pod as values: joined networks, forwarded ports, and the offers to apps.

Planning decides, and the network helper sets the networks up. Read `networkplan.py` first.
"""
