"""
Commands that are entered into an app, as confined as the app itself.

The `enter` entrypoint calls it, and so do checks of health that are commands. Read `enterpod.py` first.
"""
