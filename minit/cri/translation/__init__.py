"""
Messages of the CRI as requests to the service of pods. Pure.

What minit cannot do yet is refused, with the name of the field: a container that is less confined, or differently made,
than it was asked for is worse than none. Read `container.py` first.
"""
