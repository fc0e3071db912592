"""
A file system that does not answer (fuse(4)): whoever looks for a file in it cannot be killed until it is given up.

What it says is in the kernel's include/uapi/linux/fuse.h.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import threading
from pathlib import Path
from typing import Self

from minit.linux import syscalls

_MNT_FORCE = 1
_LOOKUP, _GETATTR, _STATFS, _INIT, _OPENDIR, _ACCESS = 1, 3, 17, 26, 27, 34
_REQUEST = struct.Struct("<IIQQIIII")
_REPLY = struct.Struct("<IiQ")
_INIT_REPLY = struct.Struct("<IIIIHHIIHHI28x")
_ATTRIBUTES = struct.Struct("<QIIQQQQQQIIIIIIIIII")
_REQUEST_BYTES = 1 << 18


class StuckFilesystem:
    """Mounted on a directory, which must be there, while it is a context; `asked` is set once somebody is stuck."""

    def __init__(self, directory: Path) -> None:
        self.asked = threading.Event()
        self._directory = directory
        self._device = -1
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other"
        syscalls.mount("stuck", str(self._directory), "fuse", 0, options)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Give everybody up who waits for an answer."""
        syscalls.umount2(str(self._directory), _MNT_FORCE | syscalls.MNT_DETACH)
        self._thread.join()
        os.close(self._device)

    def _serve(self) -> None:
        while True:
            try:
                data = os.read(self._device, _REQUEST_BYTES)
            except OSError as error:
                if error.errno == errno.ENODEV:  # it is unmounted
                    return
                continue
            _, operation, number, *_ = _REQUEST.unpack_from(data)
            if operation == _LOOKUP:
                self.asked.set()
            elif operation == _INIT:
                self._answer(number, _INIT_REPLY.pack(7, 31, 0, 0, 1, 1, 4096, 1, 0, 0, 0))
            elif operation == _GETATTR:
                mode = stat.S_IFDIR | 0o755
                attributes = (1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, mode, 2, 0, 0, 0, 4096, 0)
                self._answer(number, _ATTRIBUTES.pack(*attributes))
            elif operation in (_STATFS, _OPENDIR, _ACCESS):
                self._answer(number, b"", errno.ENOSYS)

    def _answer(self, number: int, data: bytes, error: int = 0) -> None:
        os.write(self._device, _REPLY.pack(_REPLY.size + len(data), -error, number) + data)
