"""
What the stage1 image carries under the names of some modules of the standard library and of PyPI.

trio and structlog import these for functions that PID 1 never calls. Without the real ones the image is
2.6 MB smaller, and the supervisor is ready sooner and takes less memory.
"""
