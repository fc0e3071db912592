"""
The images that minit builds: its own stage1 image, images of apps, and the initramfs of a machine.

The command calls it, and so does whoever builds minit. Read `stage1.py` first.
"""
