"""
Everything that is decided about a pod before anything is touched: values in, values out, no effects.

The launcher and a machine plan by it, and PID 1 reads what was planned. Read `podplan.py` first.
"""
