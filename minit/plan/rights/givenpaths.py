"""Reading the protected paths that a caller gives in place of minit's own; the paths are any of the app's root."""

from __future__ import annotations

import posixpath

from minit.manifest.annotations import Annotation
from minit.manifest.pod import RuntimeApp
from minit.manifest.reader import Node, read_json
from minit.plan.rights.protection import Protection
from minit.plan.root.mountoperations import PROC

_MASKED, _READ_ONLY = "masked", "readOnly"
_MOST = 512
# Under an app that is PID 1 a new /proc is mounted for each start, and what is over it would be in the way.
_REFUSED = ("/", PROC.target)


def plan_given_protection(runtime: RuntimeApp) -> Protection | None:
    """Return exactly the paths of an app's annotation, None without one; ManifestError for what they cannot be."""
    text = runtime.annotation(Annotation.PROTECTED_PATHS)
    if text is None:
        return None
    where = f'app "{runtime.name}": annotation {Annotation.PROTECTED_PATHS}'
    root = read_json(text.encode(errors="surrogateescape"), where)
    given = root.raw()
    if not isinstance(given, dict) or not set(given) <= {_MASKED, _READ_ONLY}:
        raise root.error(f"an object with {_MASKED}, {_READ_ONLY} or both")
    return Protection(masked=_read_paths(root[_MASKED]), read_only=_read_paths(root[_READ_ONLY]), is_exact=True)


def _read_paths(node: Node) -> tuple[str, ...]:
    paths = node.each(lambda each: posixpath.normpath(each.matching(_is_path, "an absolute path below /")))
    if len(paths) > _MOST:
        raise node.error(f"at most {_MOST} paths", str(len(paths)))
    return tuple(dict.fromkeys(paths))


def _is_path(path: str) -> bool:
    # normpath keeps two slashes at the beginning.
    is_plain = path.startswith("/") and not path.startswith("//") and ".." not in path.split("/")
    return is_plain and posixpath.normpath(path) not in _REFUSED
