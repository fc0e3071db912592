"""Waiting for children and recording how they ended; nothing else in PID 1 waits."""
