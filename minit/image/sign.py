"""
Signs standard input with the private key in a file, and prints the public key and the signature in hexadecimal.

    sign.py KEY

A separate interpreter runs the script, since a dumped command cannot load the library of `cryptography`.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Sign, or end with one line."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        sys.exit(f"cryptography is not installed: {sys.executable} -m pip install cryptography")
    try:
        with open(sys.argv[1], "rb") as file:
            key = load_pem_private_key(file.read(), password=None)
    except OSError as error:
        sys.exit(f"{error.strerror}".lower())
    except (ValueError, TypeError):
        sys.exit("expected a private key (PEM) without a password")
    if not isinstance(key, Ed25519PrivateKey):
        sys.exit("expected a key for Ed25519, as openssl genpkey -algorithm ed25519 makes it")
    print(key.public_key().public_bytes_raw().hex(), key.sign(sys.stdin.buffer.read()).hex())


if __name__ == "__main__":
    main()
