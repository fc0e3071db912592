"""
Images in files: ACIs, OCI layouts and archives, and the archives of docker save, read and converted to ACIs.

`stage0` reads images by it, and `image` writes them by its tar writer; nothing is extracted here. Read `opening.py`
first.
"""
