"""
Options, as words to values: each kind has a pure parser of its own.

The commands use it. It reads no images and no pods. Read `runoptions.py` first.
"""
