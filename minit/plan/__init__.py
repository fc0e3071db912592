"""
All decisions about a pod before any effect: values in, values out.

The launcher and a machine plan with these modules, and PID 1 reads the plan. Read `podplan.py` first.
"""
