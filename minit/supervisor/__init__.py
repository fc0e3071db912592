"""PID 1 of a pod: builds its root, starts the apps, and keeps their records until the last one has ended."""
