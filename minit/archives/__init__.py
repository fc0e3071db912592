"""
Images in files: ACIs, OCI layouts and archives, and the archives of docker save, read and converted to ACIs.

`stage0` reads images here, `image` writes images by the tar writer; nothing is extracted. Read `opening.py` first.
"""
