"""
The values at the start of planning: flags of entrypoints, the pod's files of flags, and facts of the host.

The entrypoints and the launcher make the values; nothing here looks at the machine. Read `runflags.py` first.
"""
