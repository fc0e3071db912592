"""The devices of the host and their coming and going, by pyudev; used by helpers of the launcher alone."""
