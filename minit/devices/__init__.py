"""The devices of the host and their coming and going, by pyudev; never loaded where PID 1 is copied from."""
