"""Stands in for ctypes.util, which runs ldconfig and a compiler to find libraries of the host."""


def find_library(name: str) -> str | None:
    """Return the C library, which is loaded already, for the threads in it since glibc 2.34; nothing else."""
    return "libc.so.6" if name == "pthread" else None
