"""
The output of commands: lists, reports, logs and progress, as text byte for byte like rkt's, or as JSON.

The commands pass values; nothing but `logview.py` reads files of pods. Read `podtext.py` first.
"""
