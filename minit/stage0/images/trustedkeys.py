"""
The public keys that may sign images, in rkt's places, by the names of images.

A key is a file `root.d/FINGERPRINT`, for all images, or `prefix.d/PREFIX/FINGERPRINT`, for the images PREFIX and
PREFIX/…, below `trustedkeys` of the system's and of the local configuration. An empty file of the local configuration
masks the system's key of the fingerprint. gpg(1) reads a new key; nothing here reads what is in a key.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from minit.base.errors import StoreError
from minit.base.value import Value, replace
from minit.linux.process import ending_with_caller
from minit.manifest.names import is_ac_identifier
from minit.podfiles.boundedfile import read_at_most, read_given
from minit.stage0.files.durable import create_file, disk_errors, make_directory, move_into_place, remove_file

KEY_LIMIT_BYTES = 1 << 20

_FINGERPRINT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_KEYS, _ROOT, _PREFIX = "trustedkeys", "root.d", "prefix.d"
_BEGIN, _END = b"-----BEGIN PGP PUBLIC KEY BLOCK-----", b"-----END PGP PUBLIC KEY BLOCK-----"
_PACKET_BIT = 0x80  # of the first byte of every OpenPGP packet, RFC 4880, section 4.2
# gpg's doc/DETAILS: the letters of an unusable key in the second field of a record.
_STATES = {"e": "expired", "r": "revoked", "i": "invalid", "d": "disabled"}
_ANOTHER = "use another directory (--local-config)"
_REMOVED_LAST = "images of the name are not verified any more"


class KeyPlaces(Value):
    """The directories of the local and of the system's configuration."""

    local: Path = Path("/etc/rkt")
    system: Path = Path("/usr/lib/rkt")


class KeyFile(Value):
    """A file of a key; an image of another name has nothing to do with the key unless `prefix` is None."""

    fingerprint: str
    prefix: str | None
    path: Path
    is_local: bool
    is_mask: bool


class PublicKey(Value):
    """A key to be trusted; `unusable` says why gpg would accept no signature of the key."""

    fingerprint: str
    subkeys: tuple[str, ...] = ()
    user_ids: tuple[str, ...] = ()
    unusable: str | None = None
    armoured: bytes = b""


def key_files(places: KeyPlaces) -> list[KeyFile]:
    """Return all files of keys, the system's before the local ones; StoreError for any other file there."""
    found = []
    for top in (places.system / _KEYS, places.local / _KEYS):
        is_local = top.parent == places.local
        found += [_key_file(path, None, is_local=is_local) for path in _files(top / _ROOT)]
        for path in _files(top / _PREFIX):
            prefix = path.parent.relative_to(top / _PREFIX).as_posix()
            found.append(_key_file(path, prefix, is_local=is_local))
    return found


def _files(directory: Path) -> Iterator[Path]:
    with disk_errors("read the trusted keys", directory, _ANOTHER):
        for parent, _, names in os.walk(directory, onerror=_unless_missing):
            yield from (Path(parent, name) for name in sorted(names))


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _key_file(path: Path, prefix: str | None, *, is_local: bool) -> KeyFile:
    if not _FINGERPRINT.fullmatch(path.name) or (prefix is not None and not is_ac_identifier(prefix)):
        raise StoreError(f"{path}: expected a key in a file named by its fingerprint; move the file elsewhere")
    is_mask = path.stat().st_size == 0
    return KeyFile(fingerprint=path.name, prefix=prefix, path=path, is_local=is_local, is_mask=is_mask)


def is_for(key: KeyFile, name: str) -> bool:
    """Tell whether a key, or a mask, is for the images of a name."""
    return key.prefix is None or f"{name}/".startswith(f"{key.prefix}/")


def usable_keys(files: Sequence[KeyFile]) -> list[KeyFile]:
    """
    Return the trusted keys among the files for one name.

    In the order of rkt a later file of a fingerprint replaces an earlier one, and a mask removes the key: of all
    images, the system's first, and then of prefixes.
    """
    trusted: dict[str, KeyFile] = {}
    for key in sorted(files, key=lambda key: (key.prefix is not None, key.is_local)):
        if key.is_mask:
            trusted.pop(key.fingerprint, None)
        else:
            trusted[key.fingerprint] = key
    return list(trusted.values())


def check_prefix(prefix: str) -> None:
    """Raise StoreError for a text that begins no name of an image."""
    if not is_ac_identifier(prefix):
        raise StoreError(f'--prefix: expected the beginning of an image name, such as example.com/app, got "{prefix}"')


def store_key(places: KeyPlaces, prefix: str | None, key: PublicKey) -> Path:
    """Put a key into the local configuration, and return the path of the file."""
    target = _directory(places.local, prefix) / key.fingerprint
    _write(places, target, key.armoured)
    return target


def remove_key(places: KeyPlaces, prefix: str | None, fingerprint: str) -> str:
    """Remove a local key and mask the system's, and return what was done; StoreError if there is neither."""
    word = re.sub(r"[\s:]", "", fingerprint).lower().removeprefix("0x")
    local, system = (_directory(top, prefix) / word for top in (places.local, places.system))
    found = [key for key in key_files(places) if key.path in (local, system) and not key.is_mask]
    if not found:
        scope = "all images" if prefix is None else f"prefix {prefix}"
        raise StoreError(f'no key "{fingerprint}" is trusted for {scope}: minit trust list shows all')
    if any(key.path == system for key in found):
        _write(places, local, b"")
        return f"masked key {word} of {system.parent} by {local}"
    with disk_errors(f"remove {local}", local.parent, _ANOTHER):
        remove_file(local)
    left = [key for key in key_files(places) if is_for(key, prefix)] if prefix is not None else []
    is_last = prefix is not None and not left
    return f"removed key {local}" + (f": {_REMOVED_LAST}" if is_last else "")


def _directory(top: Path, prefix: str | None) -> Path:
    return top / _KEYS / _ROOT if prefix is None else top / _KEYS / _PREFIX / prefix


def _write(places: KeyPlaces, target: Path, data: bytes) -> None:
    with disk_errors(f"write {target}", target.parent, _ANOTHER):
        make_directory(target.parent, 0o755)
        with TemporaryDirectory(dir=places.local / _KEYS) as scratch:
            create_file(Path(scratch, "key"), data, 0o644)
            move_into_place(Path(scratch, "key"), target)


def binary_key(path: Path) -> bytes:
    """Return the packets in a file with a key, armoured or not; StoreError for another file."""
    with disk_errors(f"read {path}", path.parent, _ANOTHER), open(path, "rb") as file:
        data = read_at_most(file, KEY_LIMIT_BYTES + 1)
    if len(data) > KEY_LIMIT_BYTES:
        raise StoreError(f"{path}: a key of more than {KEY_LIMIT_BYTES} bytes")
    packets = unarmoured(data)
    if packets is None:
        raise StoreError(f"{path}: expected a public key of OpenPGP; trust the key again with: minit trust add")
    return packets


def unarmoured(data: bytes) -> bytes | None:
    """Return the packets of a public key, None for something else; the checksum, which adds nothing, is not read."""
    if data[:1] and data[0] & _PACKET_BIT:
        return data
    lines = [line.strip() for line in data.splitlines()]
    try:
        begin = lines.index(_BEGIN)
        body = lines[lines.index(b"", begin) + 1 : lines.index(_END, begin)]
        return base64.b64decode(b"".join(line for line in body if not line.startswith(b"=")), validate=True)
    except ValueError:
        return None


def read_public_keys(path: Path) -> list[PublicKey]:
    """Return the keys in a file, read by gpg(1) and written by gpg(1) anew, so that nothing else is in them."""
    data = read_given(path, "key", KEY_LIMIT_BYTES)
    with TemporaryDirectory(prefix="minit-") as home:
        _gpg(home, "--import", given=data)
        keys = parse_colons(_gpg(home, "--list-keys").decode("utf-8", "replace"))
        if not keys:
            raise StoreError(f"{path}: expected a public key of OpenPGP, armoured or binary")
        return [replace(key, armoured=_gpg(home, "--armor", "--export", key.fingerprint)) for key in keys]


def _gpg(home: str, *words: str, given: bytes = b"") -> bytes:
    program = shutil.which("gpg")
    if program is None:
        raise StoreError("gpg, which reads the key, is not installed (Debian: apt install gpg)")
    options = ("--homedir", home, "--batch", "--no-options", "--no-autostart", "--with-colons", "--quiet")
    done = subprocess.run(
        [program, *options, *words],
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=ending_with_caller(),
    )
    return done.stdout


def parse_colons(text: str) -> list[PublicKey]:
    """Return the keys, without their packets, of what gpg lists with --with-colons; see doc/DETAILS of gpg."""
    keys: list[PublicKey] = []
    kind = ""
    for line in text.splitlines():
        record, state, *fields = [*line.split(":"), ""]
        value = fields[7] if len(fields) > 8 else ""
        if record == "pub":
            keys.append(PublicKey(fingerprint="", unusable=_STATES.get(state)))
        if record in ("pub", "sub"):
            kind = record
        elif not keys:
            continue
        elif record == "fpr" and _FINGERPRINT.fullmatch(value.lower()):
            key = keys[-1]
            if kind == "pub":
                keys[-1] = replace(key, fingerprint=value.lower())
            else:
                keys[-1] = replace(key, subkeys=(*key.subkeys, value.lower()))
        elif record == "uid":
            keys[-1] = replace(keys[-1], user_ids=(*keys[-1].user_ids, _unescaped(value)))
    return [key for key in keys if key.fingerprint]


def _unescaped(text: str) -> str:
    return re.sub(r"\\x([0-9a-f]{2})", lambda match: chr(int(match[1], 16)), text)
