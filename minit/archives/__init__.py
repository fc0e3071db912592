"""Reads images from files: ACIs, OCI layouts and archives, and the archives of docker save. Nothing is extracted."""
