"""
Detached OpenPGP signatures of images, verified by gpgv(1) with the keys that are trusted for an image's name.

gpgv gets the trusted keys alone, and the very bytes that are imported. Of its status lines, doc/DETAILS of GnuPG,
exactly those of one good signature are accepted.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from minit.base.errors import ImageError, StoreError, describe
from minit.base.harmless import harmless
from minit.base.value import Value, replace
from minit.linux.process import ending_with_caller
from minit.manifest.reader import Node, read_json
from minit.podfiles.boundedfile import read_at_most
from minit.stage0.images.trustedkeys import KeyFile, KeyPlaces, binary_key, is_for, key_files, usable_keys

SUFFIX = ".asc"

_SIGNATURE_LIMIT_BYTES = 1 << 16
_MOST_SECONDS = 1 << 40
_PREFIX = "[GNUPG:] "
_SAY_NOTHING = frozenset(("KEY_CONSIDERED", "SIG_ID", "NO_PUBKEY", "VERIFICATION_COMPLIANCE_MODE", "PROGRESS"))
_REFUSALS = {
    "BADSIG": "the signature is not of these bytes",
    "EXPSIG": "the signature has expired",
    "EXPKEYSIG": "the key of the signature has expired",
    "REVKEYSIG": "the key of the signature is revoked",
    "NODATA": "expected one detached signature of OpenPGP",
}
# The hash algorithms of RFC 4880, section 9.4, and RFC 9580: SHA2 and SHA3 of 256 bits and more.
_DIGESTS = frozenset(("8", "9", "10", "12", "14"))
_NO_KEY = "9"
_BINARY_DOCUMENT = "00"
_FINGERPRINT = r"([0-9A-F]{40}|[0-9A-F]{64})"
_VALID = re.compile(rf"{_FINGERPRINT} \d{{4}}-\d\d-\d\d (\d{{1,12}}) \d+ \d+ \d+ \d+ (\d+) (\w\w) {_FINGERPRINT}")


class SignatureKind(StrEnum):
    """The way in which an image was verified."""

    OPENPGP = "openpgp"
    POLICY = "policy"


class Signature(Value):
    """
    What was found good at the import of an image: a detached signature, or the signatures that a policy asks for.

    `key` is the fingerprint of the primary key, `fingerprint` of the key that signed. `policy` is the file of a policy,
    `requirements` are the policy's words for the image.
    """

    kind: SignatureKind = SignatureKind.OPENPGP
    key: str = ""
    fingerprint: str = ""
    user_id: str = ""
    signed_seconds: int = 0
    policy: str = ""
    requirements: tuple[str, ...] = ()
    verified_seconds: int = 0

    @property
    def document(self) -> dict[str, object]:
        """The signature as JSON, for `parse_signature` and for users."""
        if self.kind is SignatureKind.POLICY:
            facts: dict[str, object] = {"policy": self.policy, "requirements": list(self.requirements)}
        else:
            facts = {
                "key": self.key,
                "fingerprint": self.fingerprint,
                "user": self.user_id,
                "signed": self.signed_seconds,
            }
        return {"kind": str(self.kind), **facts, "verified": self.verified_seconds}


def parse_signature(data: bytes, source: str) -> Signature:
    """Return the signature of a record in the store; ManifestError for a broken record."""
    node = read_json(data, source)
    kind = SignatureKind(node["kind"].one_of(*SignatureKind))
    verified = Signature(kind=kind, verified_seconds=node["verified"].integer(0, _MOST_SECONDS))
    if kind is SignatureKind.POLICY:
        requirements = node["requirements"].each(Node.string)
        return replace(verified, policy=node["policy"].string(), requirements=requirements)
    return replace(
        verified,
        key=node["key"].string(),
        fingerprint=node["fingerprint"].string(),
        user_id=node["user"].string(),
        signed_seconds=node["signed"].integer(0, _MOST_SECONDS),
    )


class Trust(Value):
    """The keys for images of this machine; without `is_enforced` nothing is verified."""

    places: KeyPlaces = KeyPlaces()
    is_enforced: bool = True

    def keys_of(self, name: str) -> list[KeyFile]:
        """Return the files of keys, masks too, for the images of a name."""
        return [key for key in key_files(self.places) if is_for(key, name)]

    @property
    def has_keys(self) -> bool:
        """Tell whether an image of any name could have to be signed."""
        return self.is_enforced and bool(key_files(self.places))

    def accepts(self, name: str, signature: Signature | None) -> bool:
        """Tell whether an image needs no signature, or has one by a key that is trusted now."""
        keys = self.keys_of(name) if self.is_enforced else []
        return not keys or (signature is not None and signature.key in {key.fingerprint for key in usable_keys(keys)})

    def refuse_unsigned(self, name: str, source: str) -> None:
        """Raise ImageError for an image of a kind that has no signature, if the name has keys."""
        if self.is_enforced and self.keys_of(name):
            raise ImageError(
                f'{source}: images named "{name}" must be signed (minit trust list), and only an ACI can have a'
                " signature beside it: --insecure-options=image imports the image unverified"
            )

    def verify(self, name: str, image: BinaryIO, source: str, given: Path | None) -> Signature | None:
        """
        Return the signature of an image, None if the name has no keys; ImageError without one good signature.

        The signature is in the file `given`, or in the file beside the image in the file `source`.
        """
        if not self.is_enforced:
            return None
        keys = self.keys_of(name)
        if not keys and given is None:
            return None
        usable = usable_keys(keys)
        if not usable:
            reason = "every key for the name is masked" if keys else "no key is trusted for the name"
            raise ImageError(f'{source}: image "{name}": {reason}: minit trust add --prefix={name} KEY')
        signature = _read_signature(given or Path(source + SUFFIX), name, source)
        try:
            signer = parse_status(*_run_gpgv(usable, signature, image))
            if signer.key not in {key.fingerprint for key in usable}:
                raise ImageError(f"key {signer.key} is not trusted for the name")
        except ImageError as error:
            raise ImageError(f'{source}: image "{name}" is not imported: {error}') from error
        return replace(signer, verified_seconds=int(time.time()))


DEFAULT_TRUST = Trust()
"""The rule of a machine whose keys are in rkt's places."""


def _read_signature(path: Path, name: str, source: str) -> bytes:
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ImageError(f"signature {path}: not a regular file")
            data = read_at_most(file, _SIGNATURE_LIMIT_BYTES + 1)
    except OSError as error:
        raise ImageError(
            f'{source}: images named "{name}" must be signed (minit trust list): read signature {describe(error)}:'
            f" give the file IMAGE{SUFFIX} or --signature; --insecure-options=image imports the image unverified"
        ) from error
    if len(data) > _SIGNATURE_LIMIT_BYTES:
        raise ImageError(f"signature {path}: more than {_SIGNATURE_LIMIT_BYTES} bytes")
    return data


def _run_gpgv(keys: Sequence[KeyFile], signature: bytes, image: BinaryIO) -> tuple[str, int]:
    """Return the status lines and the exit code of gpgv, which reads the whole file of the image."""
    program = shutil.which("gpgv")
    if program is None:
        raise StoreError("gpgv, which verifies signatures, is not installed (Debian: apt install gpgv)")
    image.seek(0)
    with (
        open(os.memfd_create("keyring"), "wb", buffering=0) as keyring,
        open(os.memfd_create("signature"), "wb", buffering=0) as signed,
    ):
        keyring.write(b"".join(binary_key(key.path) for key in keys))
        signed.write(signature)
        files = keyring.fileno(), signed.fileno()
        options = ("--homedir=/nonexistent", "--status-fd=1", "--weak-digest=SHA1", "--weak-digest=RIPEMD160")
        done = subprocess.run(
            [program, *options, f"--keyring=/dev/fd/{files[0]}", f"/dev/fd/{files[1]}", "-"],
            stdin=image.fileno(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=files,
            preexec_fn=ending_with_caller(),
        )
    return done.stdout.decode("utf-8", "replace"), done.returncode


def parse_status(text: str, code: int) -> Signature:
    """Return the one good signature that gpgv tells of; ImageError for anything else in its status lines."""
    found: dict[str, list[str]] = {}
    for line in text.split("\n")[:-1]:
        if not line.startswith(_PREFIX):
            raise ImageError("gpgv gave an unknown answer")
        word, _, rest = line.removeprefix(_PREFIX).partition(" ")
        found.setdefault(word, []).append(rest)
    if len(found.get("NEWSIG", ())) > 1:
        raise ImageError("expected one signature, got several")
    for word, reason in _REFUSALS.items():
        if word in found:
            raise ImageError(reason)
    if "ERRSIG" in found:
        raise ImageError(_reason_of_error(found["ERRSIG"][0].split(" ")))
    valid, good = (found.pop(word, []) for word in ("VALIDSIG", "GOODSIG"))
    match = _VALID.fullmatch(valid[0]) if len(valid) == 1 else None
    others = found.keys() - _SAY_NOTHING - {"NEWSIG", "KEYEXPIRED"}
    if code != 0 or match is None or len(good) != 1 or "NEWSIG" not in found or "NO_PUBKEY" in found or others:
        raise ImageError("expected one detached signature of OpenPGP" if not match else "gpgv found no good signature")
    fingerprint, seconds, digest, kind, key = match.groups()
    if digest not in _DIGESTS:
        raise ImageError("the digest of the signature is too weak")
    if kind != _BINARY_DOCUMENT:
        raise ImageError("the signature is not of a binary file")
    user_id = harmless(unquote(good[0].partition(" ")[2], errors="replace"))
    return Signature(key=key.lower(), fingerprint=fingerprint.lower(), user_id=user_id, signed_seconds=int(seconds))


def _reason_of_error(fields: Sequence[str]) -> str:
    """Return why gpgv could not check a signature, of the fields of its ERRSIG."""
    digest, code, key = ([*fields, *[""] * 7][number] for number in (2, 5, 6))
    if digest not in _DIGESTS:
        return "the digest of the signature is too weak"
    if code == _NO_KEY:
        return f"key {(key or fields[0]).lower()}, which signed the image, is not trusted for the name"
    return "gpgv cannot check the signature"
