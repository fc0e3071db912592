"""Images from registries and from other stores of this machine, by skopeo(1), which knows how to talk to them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from minit.archives.imagenames import DEFAULT_REGISTRY, ImageName, parse_image_name
from minit.archives.transports import CONTAINERS_STORAGE, DIR, REGISTRY_SCHEMES, SKOPEO_TRANSPORTS
from minit.errors import ImageError, StoreError, describe
from minit.progress import Progress
from minit.value import Value

_MESSAGE = re.compile(r'msg="((?:[^"\\]|\\.)*)"')
_SHOWN_LIMIT = 500
# `[DRIVER@ROOT]` before a name of podman's store, containers-storage-transport(5)
_STORAGE = re.compile(r"\[[^]]*\]")
_IMAGE_ID = re.compile(r"@?(?:sha256:)?[0-9a-f]{64}|@[0-9a-f]+")
_WORDS_OF_TLS = ("tls: ", "x509: ", "server gave HTTP response to HTTPS client")


class SkopeoSource(Value):
    """
    An image as skopeo is asked for it, with its name if it has one; `title` is what to call it else.

    A remote one is not asked about again while the store has an image of its name.
    """

    wanted: str
    name: ImageName | None
    title: str = ""
    is_remote: bool = False


def skopeo_source(reference: str) -> SkopeoSource:
    """Return what a reference to a registry or to another store means; ImageError if that is nothing."""
    for scheme in REGISTRY_SCHEMES:
        if reference.startswith(scheme):
            name = parse_image_name(reference.removeprefix(scheme))
            host = "docker.io" if name.registry == DEFAULT_REGISTRY else name.registry
            end = f"@{name.digest}" if name.digest else f":{name.tag}"
            return SkopeoSource(wanted=f"docker://{host}/{name.repository}{end}", name=name, is_remote=True)
    transport, _, rest = reference.partition(":")
    assert transport in SKOPEO_TRANSPORTS
    if not rest:
        raise ImageError(f'"{reference}" names no image: expected something after the colon')
    if transport == DIR:
        path = Path(rest).resolve()
        return SkopeoSource(wanted=f"{DIR}:{path}", name=None, title=path.name)
    text = _STORAGE.sub("", rest, count=1) if transport == CONTAINERS_STORAGE else rest
    if _IMAGE_ID.fullmatch(text):
        return SkopeoSource(wanted=reference, name=None, title=text.lstrip("@").removeprefix("sha256:")[:12])
    return SkopeoSource(wanted=reference, name=parse_image_name(text))


def copy_by_skopeo(wanted: str, layout: Path, progress: Progress, *, verify_tls: bool) -> None:
    """
    Copy an image, for this machine, into an OCI layout, but for blobs there; StoreError if skopeo is missing or fails.

    Reports what skopeo does, without numbers.
    """
    program = shutil.which("skopeo")
    if program is None:
        archive = re.sub(r"[^A-Za-z0-9._-]", "-", wanted.rpartition("/")[2]) + ".tar"
        name = wanted.removeprefix("docker://")
        named = f"{archive}:{name}" if name != wanted and "@" not in name else archive
        raise StoreError(
            f'cannot fetch "{wanted}": skopeo is not installed: install it, or on a machine that has it:'
            f" skopeo copy {wanted} oci-archive:{named}, and here: minit fetch oci-archive:{archive}"
        )
    # Or it would compress what comes uncompressed from other stores.
    options = ["--dest-oci-accept-uncompressed-layers", *([] if verify_tls else ["--src-tls-verify=false"])]
    try:
        process = subprocess.Popen(
            [program, "copy", wanted, f"oci:{layout}", *options],
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
        remedy = ": --insecure-options=http,tls does without" if any(word in last for word in _WORDS_OF_TLS) else ""
        raise StoreError(f'cannot fetch "{wanted}": skopeo: {reason[:_SHOWN_LIMIT] or "it failed"}{remedy}')
