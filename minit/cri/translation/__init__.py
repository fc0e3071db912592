"""
Messages of the CRI as requests to the service of pods. Pure.

A setting without an implementation in minit is refused with the name of the field: a container with less confinement
than requested, or made in another way, is worse than none. Read `container.py` first.
"""
