"""Files that several programs know: their names, locks, logs and bounds. Read `paths.py` first."""
