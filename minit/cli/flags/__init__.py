"""
Options, from words to values: the parsers are pure.

Only the commands import this folder, which reads no images and no pods. Read `runoptions.py` first.
"""
