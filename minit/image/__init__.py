"""
The images that minit builds: minit's stage1 image, images of apps, and the initramfs and disks of machines.

The command and the build of minit call these modules. Read `stage1.py` first.
"""
