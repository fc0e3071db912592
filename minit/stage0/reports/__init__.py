"""
What pods tell from outside: logs, events, use of resources, and why one does not do what it should.

The commands that look at pods call it. It changes nothing. Read `podtraces.py` first.
"""
