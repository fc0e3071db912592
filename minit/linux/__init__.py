"""System calls, and what is made of these alone: forks, waiting, mounts, terminals. Read `syscalls.py` first."""
