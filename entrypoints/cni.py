"""The `cni` entrypoint, minit's own: the built-in plugins of networks, by whose names there are links to it."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from minit.launcher.ownimage import image_root
from minit.linux.process import forget_imports
from minit.network.pluginprogram import run_program


def main() -> NoReturn:
    """Be the plugin by whose name this was called, which the image's launcher tells."""
    forget_imports()
    os._exit(run_program(sys.argv[1], os.environ, image_root()))
