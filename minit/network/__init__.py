"""The networks of a pod: plugins of the CNI, built-in ones, port forwarding, and undoing all of it."""
