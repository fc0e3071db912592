"""
The images of a node: the ImageService, one pull for all who ask at once, and what the store has, kept in memory.

Read `imagecalls.py` first, then `nodeimages.py`: an image is known by the digest of its configuration.
"""
