"""minit/image/dump/sha2.c: the hashes that a static library of Python may lack."""

from __future__ import annotations

import ctypes
import hashlib
import random
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from minit.image.dump import program

SOURCE = Path(program.__file__).with_name("sha2.c")
PREFIX = "python_hashlib_Hacl_Hash_SHA2"


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., int]:
    """Calls a function of it, by the last words of its name."""
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("this Python cannot be dumped")
    output = tmp_path_factory.mktemp("sha2") / "sha2.so"
    allocators = [f"-Darena_{name}={name}" for name in ("malloc", "calloc", "free")]
    includes = [f"-I{sysconfig.get_path(name)}" for name in ("include", "platinclude")]
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", *allocators, *includes, "-include", "stdlib.h"]
        + ["-o", output, SOURCE],
        check=True,
    )
    library = ctypes.CDLL(str(output))

    def call(name: str, *arguments: object) -> int:
        function = library[f"{PREFIX}_{name}"]
        function.restype = ctypes.c_void_p
        result: int = function(*arguments)
        return result

    return call


@pytest.mark.parametrize(("name", "size"), [("224", 256), ("256", 256), ("384", 512), ("512", 512)])
def test_it_is_what_openssl_has(functions: Callable[..., int], name: str, size: int) -> None:
    """For any length, however it comes, and from a copy too; a digest can be had at any time."""
    numbers = random.Random(1)
    for length in [*range(300), 5000, 70_001]:
        data = numbers.randbytes(length)
        hashed, at = ctypes.c_void_p(functions(f"malloc_{name}")), 0
        digest = ctypes.create_string_buffer(size // 8)
        while at < length:
            part = data[at : at + numbers.randint(1, 200)]
            functions(f"update_{size}", hashed, part, ctypes.c_uint32(len(part)))
            at += len(part)
            functions(f"digest_{size}", hashed, digest)
        copy = ctypes.c_void_p(functions(f"copy_{size}", hashed))
        functions(f"free_{size}", hashed)
        functions(f"digest_{size}", copy, digest)
        functions(f"free_{size}", copy)
        assert digest.raw[: int(name) // 8] == hashlib.new(f"sha{name}", data).digest(), length
