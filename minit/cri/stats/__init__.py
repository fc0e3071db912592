"""
The use of processors, memory and room by sandboxes and containers, read of their control groups and layers when asked.

Read `statscalls.py` first.
"""
