"""
Volumes of apps, and the devices among them: found, allowed to the app's control group, and followed while it runs.

The start of a pod and `app/add` call it. Read `openvolumes.py` first, then `devicehelper.py`.
"""
