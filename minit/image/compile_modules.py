"""
Compiles modules to bytecode files, the same bytes for the same sources.

Run as a script in a fresh isolated interpreter: marshal writes an object with several references differently, so an
interpreter that has done other work could write other bytes for the same code. Standard input has a line
`name<TAB>source<TAB>bytecode file` for each module.
"""

from __future__ import annotations

import ast
import marshal
import sys
from importlib.util import MAGIC_NUMBER, source_hash

# PEP 552. A file that is checked by its source's time becomes stale when the image is unpacked, and would then
# be compiled again at every start.
UNCHECKED_HASH = (1).to_bytes(4, "little")

# The docstrings of commands are help texts.
WITH_DOCSTRINGS = "minit.cli."


def drop_docstrings(tree: ast.Module) -> None:
    """Remove all docstrings; unlike the -OO option this leaves assertions, which trio relies on."""
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            docstring, *rest = node.body
            # Only a module may be empty.
            node.body = rest or ([] if isinstance(node, ast.Module) else [ast.copy_location(ast.Pass(), docstring)])


for line in sys.stdin.read().splitlines():
    name, source_path, bytecode_path = line.split("\t")
    with open(source_path, "rb") as file:
        source = file.read()
    # Tracebacks and marshal must not name the directory the image was built in.
    shown_path = name.replace(".", "/") + ".py"
    tree = ast.parse(source, shown_path)
    if not name.startswith(WITH_DOCSTRINGS):
        drop_docstrings(tree)
    code = compile(tree, shown_path, "exec", dont_inherit=True)
    with open(bytecode_path, "wb") as bytecode:
        bytecode.write(MAGIC_NUMBER + UNCHECKED_HASH + source_hash(source) + marshal.dumps(code))
