"""The script of `make demo`, and the pictures of `make pictures`."""
