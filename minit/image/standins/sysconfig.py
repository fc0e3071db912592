"""Stands in for sysconfig, which ctypes of Python 3.14 imports for Android, and which brings threading with it."""
