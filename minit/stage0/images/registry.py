"""Images from registries, by skopeo(1), which knows how to talk to them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from minit.archives.imagenames import ImageName
from minit.errors import StoreError, describe
from minit.progress import Progress

_MESSAGE = re.compile(r'msg="((?:[^"\\]|\\.)*)"')
_SHOWN_LIMIT = 500


def copy_from_registry(name: ImageName, layout: Path, progress: Progress) -> None:
    """
    Copy an image, for this machine, into a new OCI layout; StoreError if skopeo is missing or fails.

    Reports what skopeo does, without numbers.
    """
    wanted = f"docker://{name.original}"
    program = shutil.which("skopeo")
    if program is None:
        archive = re.sub(r"[^A-Za-z0-9._-]", "-", name.original.rpartition("/")[2]) + ".tar"
        raise StoreError(
            f'cannot fetch "{wanted}": skopeo is not installed: install it, or on a machine that has it:'
            f" skopeo copy {wanted} oci-archive:{archive}, and here: minit fetch oci-archive:{archive}"
        )
    try:
        process = subprocess.Popen(
            [program, "copy", wanted, f"oci:{layout}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise StoreError(f'cannot fetch "{wanted}": {describe(error)}') from error
    last = ""
    with process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                last = line.strip() or last
                progress(f"skopeo: {last[:_SHOWN_LIMIT]}", 0, None)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        message = _MESSAGE.search(last)
        reason = message[1].replace('\\"', '"') if message else last
        raise StoreError(f'cannot fetch "{wanted}": skopeo: {reason[:_SHOWN_LIMIT] or "it failed"}')
