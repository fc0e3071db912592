"""Keys of OpenPGP, made once for a session, and signatures by these keys."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import wait_for

_EARLIER = "--faked-system-time=20200101T000000!"


class Keys:
    """A keyring of gpg's in the directory `home`; names of people stand for the keys."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def gpg(self, *words: object, given: bytes = b"") -> bytes:
        """Run gpg and return the output."""
        options = ("--homedir", self._home, "--batch", "--quiet", "--yes", "--passphrase", "")
        command = ["gpg", *map(str, (*options, *words))]
        return subprocess.run(command, input=given, check=True, capture_output=True).stdout

    def make(self, name: str, *options: str, until: str = "never") -> str:
        """Make a key of somebody, and return the fingerprint."""
        self.gpg(*options, "--quick-gen-key", f"{name} <{name}@example.com>", "ed25519", "sign", until)
        return self.fingerprint(name)

    def fingerprint(self, name: str) -> str:
        """Return the fingerprint of the primary key of somebody."""
        lines = self.gpg("--with-colons", "--list-keys", f"{name}@example.com").decode().splitlines()
        return next(line.split(":")[9].lower() for line in lines if line.startswith("fpr:"))

    def public(self, name: str, *options: str) -> bytes:
        """Return the public key of somebody."""
        return self.gpg(*(options or ("--armor",)), "--export", f"{name}@example.com")

    def sign(self, name: str, data: bytes, *options: str) -> bytes:
        """Return a detached signature of data."""
        return self.gpg(*(options or ("--armor",)), "--local-user", f"{name}@example.com", "--detach-sign", given=data)

    def revoke(self, name: str) -> None:
        """Revoke the key of somebody."""
        path = self._home / "openpgp-revocs.d" / f"{self.fingerprint(name).upper()}.rev"
        self.gpg("--import", given=path.read_bytes().replace(b":-----BEGIN", b"-----BEGIN"))


def sign_earlier(keys: Keys, name: str, data: bytes, *options: str) -> bytes:
    """Return a signature of the first day of 2020."""
    return keys.sign(name, data, "--armor", _EARLIER, *options)


@contextmanager
def made_keys() -> Iterator[Keys]:
    """
    Give keys for the length of a with block, and end gpg's agent after it.

    ann and bob have good keys, ann also a subkey that signs. The key of old has expired, and eve's can be revoked.
    """
    home = Path(tempfile.mkdtemp(prefix="minit-"))  # the path of the agent's socket is short
    try:
        keys = Keys(home)
        for name in ("ann", "bob", "eve"):
            keys.make(name, _EARLIER)
        keys.make("old", _EARLIER, until="1d")
        keys.make("sub", _EARLIER)
        keys.gpg("--quick-add-key", keys.fingerprint("sub").upper(), "ed25519", "sign", "never")
        yield keys
    finally:
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "gpg-agent"], check=False, capture_output=True)
        wait_for(lambda: not [*home.glob("S.gpg-agent*")], "the agent, which removes its sockets itself")
        shutil.rmtree(home)
