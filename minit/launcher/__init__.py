"""The host side of a pod: loads and plans it, makes its control groups and PID 1, then waits."""
