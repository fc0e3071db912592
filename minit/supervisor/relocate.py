"""Making imports work after the interpreter's own files moved to a new root."""

from __future__ import annotations

import sys


def relocate_imports(old_root: str, new_root: str = "/") -> None:
    """
    Rewrite every path the import system remembers from below `old_root` to below `new_root`.

    sys.path alone is not enough: each loaded package looks for its submodules along its own __path__.
    """

    def moved(path: object) -> object:
        if isinstance(path, str) and path.startswith(prefix):
            return base + path[len(prefix) :]
        return path

    prefix = old_root.rstrip("/") + "/"
    base = new_root.rstrip("/") + "/"
    sys.path[:] = [str(moved(entry)) for entry in sys.path]
    for name in ("prefix", "base_prefix", "exec_prefix", "base_exec_prefix", "executable", "_base_executable"):
        setattr(sys, name, moved(getattr(sys, name)))
    if not sys.path:
        return  # everything is imported: the interpreter was dumped
    sys._stdlib_dir = moved(sys._stdlib_dir)  # type: ignore[attr-defined]
    for module in list(sys.modules.values()):
        path = getattr(module, "__path__", None)
        if isinstance(path, list):
            path[:] = [moved(entry) for entry in path]
        if isinstance(getattr(module, "__file__", None), str):
            module.__file__ = str(moved(module.__file__))
        spec = getattr(module, "__spec__", None)
        if spec is not None:
            spec.origin = moved(spec.origin)
            locations = spec.submodule_search_locations
            if isinstance(locations, list) and locations is not path:
                locations[:] = [moved(entry) for entry in locations]
            loader = spec.loader
            if isinstance(getattr(loader, "path", None), str):
                loader.path = moved(loader.path)
    sys.path_importer_cache.clear()
