"""Stands in for ctypes.util, which runs ldconfig and a compiler to find libraries of the host."""

# For the threads in the C library since glibc 2.34, which is loaded already, and for pyudev.
_LIBRARIES = {"pthread": "libc.so.6", "udev": "libudev.so.1"}


def find_library(name: str) -> str | None:
    """Return the name of a library that the image carries; nothing of the host."""
    return _LIBRARIES.get(name)
