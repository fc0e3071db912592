"""The places of plugins, and which of them are built in."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from minit.base.errors import NetworkError
from minit.podfiles import paths

_VENDOR = f"/{paths.PLUGINS}"
_SYSTEM = ("/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni")


class PluginSearch:
    """
    The search for plugins by their type: in `directories`, then among those built in, then in the directories `others`.

    `root` is where the stage1 image is whose programs the built-in ones are.
    """

    def __init__(self, directories: Sequence[str], root: str, others: Sequence[str] = ()) -> None:
        self.directories = tuple(directories)
        self.others = tuple(others)
        self._own = f"{root}/{paths.PLUGINS}"
        self._program = f"{root}/entrypoints/{paths.PLUGIN_ENTRYPOINT}"

    def find(self, plugin_type: str) -> str:
        """Return the path of a plugin's program; NetworkError if there is no such plugin."""
        found = _find_program(self.directories, plugin_type)
        if found is None and plugin_type in paths.BUILT_IN_PLUGINS:
            return f"{self._own}/{plugin_type}"
        found = found or _find_program(self.others, plugin_type)
        if found is None:
            raise NetworkError(f'Could not find plugin "{plugin_type}"')
        return found

    def is_built_in(self, plugin_type: str, path: str) -> bool:
        """
        Tell whether the plugin at `path` is called, not executed.

        In the image's directory that goes by the name alone. When a pod is removed its image may not be there any more,
        or have got a file of that name from whoever broke into the pod.
        """
        if plugin_type not in paths.BUILT_IN_PLUGINS:
            return False
        try:
            return os.path.dirname(path) == self._own or os.path.samefile(path, self._program)
        except OSError:
            return False

    def environment_path(self, program: str) -> str:
        """Return CNI_PATH for a program, where it finds the plugins that it delegates to."""
        is_first = os.path.dirname(program) in self.directories
        return ":".join(self.directories if is_first else (*self.directories, *self.others))


def search_for_pod(local_config: str, others: Sequence[str] = _SYSTEM) -> PluginSearch:
    """Return the search of a pod, whose directory is the working directory: rkt's directories come first."""
    directories = (f"{local_config}/net.d", _VENDOR, paths.POD_PLUGINS)
    return PluginSearch(directories, paths.POD_STAGE1_ROOTFS, others)


def _find_program(directories: Sequence[str], name: str) -> str | None:
    for directory in directories:
        path = f"{directory}/{name}"
        try:
            if stat.S_ISREG(os.stat(path).st_mode):
                return path
        except OSError:
            pass
    return None
