"""System calls, and code on top of system calls alone: forks, waiting, mounts, terminals. Read `syscalls.py` first."""
