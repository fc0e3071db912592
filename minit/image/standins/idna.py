"""Stands in for idna, which trio imports to resolve names that are not ASCII: PID 1 resolves none."""
