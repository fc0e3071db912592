"""
Named volumes: directories that outlive the pods that mount them, and begin with what an image has at their place.

The commands about volumes call it, and the preparation of pods (`minit/stage0/start/volumefilling.py`). In a manifest
such a volume is a directory of the host, so stage1 knows nothing of names. Read `volumestore.py` first.
"""
