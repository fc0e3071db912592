"""Layers that are unpacked side by side: what fails or is killed ends all of it, and leaves nothing."""

from __future__ import annotations

import errno
import io
import os
import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import pytest

from minit.archives.layered import Layer
from minit.archives.streams import DEFAULT_LIMITS, Limits
from minit.base.errors import ImageError
from minit.base.progress import silent
from minit.stage0.images import fetching, layerstore
from minit.stage0.images.fetching import resolve_image
from minit.stage0.images.layerstore import unpack_layers
from minit.stage0.images.store import Store
from tests import tars
from tests.support.layers import Layout, gzipped, layer, sha256
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from typing_extensions import Buffer

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="keeps the owners of files, which needs root")

MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
FIRST_FILE = "files/0"


@pytest.fixture(autouse=True)
def _two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    with Store(tmp_path / "data") as store:
        yield store


class Endless:
    """A layer that comes by a pipe: the beginning of its first file, and then nothing for ever."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.write(self._writer, tars.file("first", b"x" * 1000)[:512])
        # It is the largest, so that it is begun first.
        self.layer = Layer(
            name="endless", open=lambda: io.FileIO(self._reader), size_bytes=1 << 40, diff_id=f"sha256:{'0' * 64}"
        )

    def __enter__(self) -> Endless:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._writer)

    def leave(self) -> None:
        """Have it read by nobody but those who do so already."""
        os.close(self._reader)

    def is_read(self) -> bool:
        """Tell whether there is anybody who reads it."""
        poll = select.poll()
        poll.register(self._writer, 0)
        return poll.poll(0) == []


class Bytes(io.RawIOBase):
    """Bytes as a file."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Read them."""
        return self._file.readinto(buffer)


def begun_after(path: Path, name: str, data: bytes) -> Layer:
    """Return a layer of this tar that is opened when there is a file."""

    def opened() -> Bytes:
        wait_for(path.exists, "the other layer")
        return Bytes(data)

    return Layer(name=name, open=opened, size_bytes=len(data), diff_id=sha256(data))


def directories(path: Path, count: int) -> list[Path]:
    """Make directories for layers."""
    made = [path / str(number) for number in range(count)]
    for directory in made:
        directory.mkdir()
    return made


def scratch(store: Store) -> list[Path]:
    """What is half done in a store."""
    return list((store.data / "minit/cas").glob("tmp/*"))


def nothing(*_: int) -> None:
    """Be told."""


def refuse(*_: int) -> NoReturn:
    """Have enough."""
    raise ImageError("enough")


def full(*_: int) -> NoReturn:
    """Have no room."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("entry", "tell", "reason"),
    [
        (tars.file("a", b"x" * 3000)[:600], nothing, "second: ends in the middle of an entry's data"),
        (tars.file("../../escape", b"x"), nothing, r'second: entry "../../escape": has a name that leaves the archive'),
        (tars.file("large", bytes(9 << 20)), refuse, "enough"),
        (tars.file("large", bytes(9 << 20)), full, "No space left on device"),
    ],
)
def test_a_failure_ends_the_others(
    tmp_path: Path, entry: bytes, tell: Callable[[int, int, int], None], reason: str
) -> None:
    """The first error of a layer, or of who is told of the progress, is raised; nobody reads another layer then."""
    places = directories(tmp_path, 2)
    with Endless() as endless:
        second = begun_after(places[0] / FIRST_FILE, "second", entry)
        with pytest.raises((ImageError, OSError), match=reason):
            unpack_layers([endless.layer, second], places, Limits(), tell)
        endless.leave()
        assert not endless.is_read()
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1"}
    assert list(tmp_path.rglob("escape")) == [] and not (tmp_path.parent / "escape").exists()


@pytest.mark.parametrize("small_bytes", [0, layerstore.SMALL_BYTES])
def test_an_error_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_bytes: int) -> None:
    """Its error of the system is that of the caller, with the file's name, as without a process for a small image."""
    monkeypatch.setattr(layerstore, "SMALL_BYTES", small_bytes)
    (place,) = directories(tmp_path, 1)
    (place / "files").touch()
    with pytest.raises(FileExistsError, match=r"File exists: '.*/0/files'"):
        unpack_layers([begun_after(place, "first", layer())], [place], Limits(), nothing)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_all(store: Store, number: signal.Signals) -> None:
    """Whoever reads a layer ends with the command; SIGTERM leaves nothing, and SIGKILL what is collected."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit

    def is_collected() -> bool:
        store.collect_leftovers()
        return not scratch(store)

    with Endless() as endless:
        pid = os.fork()
        if pid == 0:
            try:
                signal.signal(signal.SIGTERM, end)  # as in the command
                with store.layers.kept():
                    store.layers.add([endless.layer], DEFAULT_LIMITS, nothing)
            finally:
                os._exit(1)
        wait_for(lambda: list((store.data / "minit/cas/tmp").glob(f"*/0/{FIRST_FILE}")), "the first file")
        endless.leave()
        assert endless.is_read()
        os.kill(pid, number)
        os.waitpid(pid, 0)
        if number == signal.SIGTERM:
            assert not endless.is_read() and scratch(store) == []
        wait_for(lambda: not endless.is_read(), "the end of the process that unpacks")
        wait_for(is_collected, "an empty store")
    assert list((store.data / "minit/cas/layer").iterdir()) == []


def test_layers_together_may_not_be_too_large(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are counted together, those too that are there already, and an image that is too large leaves nothing."""
    large = [layer(tars.file(name, os.urandom(6 << 20))) for name in ("a", "b", "c")]
    layout = Layout()
    layout.add(*large, tag="all", architecture=MACHINE, compress=gzipped, suffix="+gzip")
    layout.add(*large[:2], tag="two", architecture=MACHINE, compress=gzipped, suffix="+gzip")
    path = layout.write_directory(tmp_path / "box")
    monkeypatch.setattr(fetching, "DEFAULT_LIMITS", Limits(size_bytes=14 << 20))
    for _ in range(2):
        with pytest.raises(ImageError, match="layers of more than 14680064 bytes when uncompressed"):
            resolve_image(store, f"oci:{path}:all", silent)
        assert scratch(store) == []
        assert len(list((store.data / "minit/cas/layer").iterdir())) == 2 * len(store.list())
        resolve_image(store, f"oci:{path}:two", silent)


def test_a_layer_that_is_in_an_image_twice(store: Store, tmp_path: Path) -> None:
    """It is unpacked once."""
    data = layer(tars.file("a", b"text"))
    layout = Layout()
    layout.add(data, layer(), data, layer(), tag="1", architecture=MACHINE)
    image = resolve_image(store, f"oci:{layout.write_directory(tmp_path / 'box')}:1", silent)
    store.verify(image.id)
    assert len(list((store.data / "minit/cas/layer").iterdir())) == 2
