"""Files with configurations of networks: the directories of the host, and the choice and reading of files."""

from __future__ import annotations

import os
import stat

from minit.podfiles.boundedfile import read_bounded

LIST_SUFFIX = ".conflist"
"""Of a file with a list of plugins."""

VENDOR = "/usr/lib/rkt/net.d"
"""The directory where packages of the host put configurations."""

CNI_DIRECTORY = "/etc/cni/net.d"
"""The directory for all runtimes of the CNI, where the network of a cluster puts its configuration."""

SUFFIXES = (".conf", LIST_SUFFIX, ".json")
"""The ends of the names of configurations, the last for all runtimes alone."""

_OF_RKT = SUFFIXES[:2]
_MAX_CONFIG_BYTES = 1 << 20


def host_directories(local_config: str) -> tuple[str, ...]:
    """Return rkt's directories of the host; a network of a later directory overrides the networks of earlier ones."""
    return VENDOR, f"{local_config}/net.d"


def list_files(directory: str) -> list[str]:
    """Return the names of the configurations in a directory, in order; none without the directory."""
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    suffixes = SUFFIXES if directory == CNI_DIRECTORY else _OF_RKT
    return sorted(name for name in names if name.endswith(suffixes))


def read_file(path: str) -> bytes | None:
    """Return the content of a regular file, None for any other kind, whose opening may wait or do harm."""
    found = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            return None
        try:
            fd = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            error.filename = path
            raise
    finally:
        os.close(found)
    return read_bounded(fd, path, _MAX_CONFIG_BYTES)
