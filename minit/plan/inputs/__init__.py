"""
The values that planning starts from: the flags of entrypoints, the pod's own files of them, and facts of the host.

The entrypoints and the launcher make them; nothing here looks at the machine. Read `runflags.py` first.
"""
