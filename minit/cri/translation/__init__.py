"""
Calls of the CRI in the words of minit's command line. Pure.

What minit cannot do yet is refused, with the name of the field: a container that is less confined, or differently made,
than it was asked for is worse than none. Read `containerwords.py` first.
"""
