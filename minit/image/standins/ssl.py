"""Stands in for ssl, which trio imports for its TLS streams: a stage1 never speaks TLS."""
