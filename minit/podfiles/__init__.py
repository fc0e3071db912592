"""Files and messages that several programs know: names, locks, logs, the control socket. Read `paths.py` first."""
