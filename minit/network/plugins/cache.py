"""
The files of an attached network in the pod directory, beside the copy of its configuration in `net/`.

`FILE.plugins` says which plugins were chosen, so that those that added the pod also delete it, whatever was installed
since. `FILE.result` is the outcome of ADD, as far as it got, which later requests repeat to the plugins.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from minit.base import jsontext
from minit.base.errors import MinitError
from minit.podfiles import paths
from minit.podfiles.boundedfile import read_bounded
from minit.podfiles.podfile import remove_pod_file, write_pod_file

JsonObject = dict[str, object]

_MAX_CACHED_BYTES = 4 << 20


def cache_plugins(file_name: str, plugins: Sequence[str]) -> None:
    """Note the chosen plugins of a network, before the first of them is run."""
    _write(_plugins_path(file_name), plugins)


def cached_plugins(file_name: str) -> tuple[str, ...]:
    """Return the plugins chosen for a network, nothing if none was ever run or the note cannot be used."""
    value = _read(_plugins_path(file_name))
    return tuple([item for item in value if isinstance(item, str)]) if isinstance(value, list) else ()


def cache_result(file_name: str, result: JsonObject) -> None:
    """Note the outcome of ADD, of a list that of the plugins so far."""
    _write(_result_path(file_name), result)


def cached_result(file_name: str) -> JsonObject | None:
    """Return the outcome of ADD, None if no plugin got so far or the note cannot be used."""
    value = _read(_result_path(file_name))
    return value if isinstance(value, dict) else None


def forget(file_name: str) -> None:
    """Remove what is noted of a network; no error if there is nothing."""
    remove_pod_file(_result_path(file_name))
    remove_pod_file(_plugins_path(file_name))


def _plugins_path(file_name: str) -> str:
    return f"{paths.POD_NET}/{file_name}.plugins"


def _result_path(file_name: str) -> str:
    return f"{paths.POD_NET}/{file_name}.result"


def _write(path: str, value: object) -> None:
    os.makedirs(paths.POD_NET, 0o755, exist_ok=True)
    write_pod_file(path, jsontext.dump(value))


def _read(path: str) -> object:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        return jsontext.parse(read_bounded(fd, path, _MAX_CACHED_BYTES), path)
    except (OSError, MinitError):
        # The specification provides for a lost result: a plugin then deletes what it finds.
        return None
