"""
SHA-2 by OpenSSL's library, SHA256_Init(3), for an interpreter without a module of OpenSSL's: the dumped command.

These functions keep their state in memory of the caller, so they work in a dumped program. The library asks the
processor for its instructions at the first digest: the program may have been dumped on another machine.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

_STATE_BYTES = 256  # SHA512_CTX has 216
_LONG_BYTES = 2048  # from here on another thread may run meanwhile, as in hashlib


def load_sha2(library: str) -> tuple[Callable[[bytes], Digest], Callable[[bytes], Digest]]:
    """Return the makers of digests with SHA-256 and SHA-512; OSError or AttributeError if `library` lacks them."""
    return (partial(Digest, _Functions(library, "SHA256"), 32), partial(Digest, _Functions(library, "SHA512"), 64))


class _Functions:
    """The functions of an algorithm; `update_alone` is `update` for little data, and keeps other threads waiting."""

    def __init__(self, library: str, name: str) -> None:
        alone = ctypes.PyDLL(library)
        # dlopen(3) has called the function already, and then the function has no name; a second call does nothing.
        self.ask_processor = getattr(alone, "_init", _is_done)
        self.init = alone[f"{name}_Init"]
        self.final = alone[f"{name}_Final"]
        self.update_alone = alone[f"{name}_Update"]
        self.update = ctypes.CDLL(library)[f"{name}_Update"]
        for update in (self.update, self.update_alone):
            update.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Digest:
    """A digest in progress, with the needed part of the interface of hashlib's digests."""

    def __init__(self, functions: _Functions, size_bytes: int, data: bytes = b"") -> None:
        self._functions = functions
        self._size_bytes = size_bytes
        self._state = ctypes.create_string_buffer(_STATE_BYTES)
        functions.ask_processor()
        functions.init(self._state)
        self.update(data)

    def update(self, data: Buffer) -> None:
        """Add bytes."""
        view = memoryview(data)
        if not view.nbytes:
            return
        start: object
        if view.readonly:
            start = data if isinstance(data, bytes) else view.tobytes()
        else:
            start = ctypes.byref(ctypes.c_char.from_buffer(view))
        update = self._functions.update if view.nbytes >= _LONG_BYTES else self._functions.update_alone
        update(self._state, start, view.nbytes)

    def digest(self) -> bytes:
        """Return the digest of all so far."""
        state, digest = ctypes.create_string_buffer(self._state.raw), ctypes.create_string_buffer(self._size_bytes)
        self._functions.final(digest, state)
        return digest.raw

    def hexdigest(self) -> str:
        """Return the digest in hex digits."""
        return self.digest().hex()


def _is_done() -> None:
    """Do nothing."""
