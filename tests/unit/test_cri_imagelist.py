"""minit.cri.nodeimages: the store is read when it has changed, and not otherwise."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from minit.cri import nodeimages
from minit.cri.nodeimages import ImageList
from minit.stage0.images.store import Store
from tests import tars

LATEST_NS = [10**18]


class CountingStore(Store):
    """A store that counts how often it is opened."""

    opened = 0

    def __init__(self, data: Path) -> None:
        CountingStore.opened += 1
        super().__init__(data)


def settle(data: Path) -> None:
    """Make all that is there old, in the order that it has."""
    for path in sorted(data.rglob("*"), key=lambda path: path.stat().st_mtime_ns):
        LATEST_NS.append(LATEST_NS[-1] + 1)
        os.utime(path, ns=(LATEST_NS[-1], LATEST_NS[-1]))


def test_following_the_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Imports, removals, tags that are lost and repeated imports are seen; without any nothing is read."""
    monkeypatch.setattr(nodeimages, "Store", CountingStore)
    data, images = tmp_path / "data", ImageList(tmp_path / "data")
    store = Store(data)

    def bring(name: str) -> str:
        path = tars.write_image(tmp_path / "x.aci", manifest_bytes=tars.manifest(name=name))
        return store.import_file(path).id

    first, second = bring("example.com/one"), bring("example.com/two")
    steps: list[tuple[Callable[[], object], list[tuple[str, bool]]]] = [
        (lambda: store.untag(second), [(first, False), (second, True)]),
        (lambda: store.renew(first), [(second, True), (first, False)]),
        (lambda: store.renew(second), [(first, False), (second, False)]),
        (lambda: store.remove(second), [(first, False)]),
        (lambda: bring("example.com/two"), [(first, False), (second, False)]),
    ]
    for change, expected in steps:
        settle(data)
        images.read()
        count = CountingStore.opened
        assert images.read() is images.read() and CountingStore.opened == count
        change()
        assert [(one.id, one.is_untagged) for image in images.read() for one in image.stored] == expected
    store.close()


def test_changes_at_one_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What has just changed is read again, as a second change need not have another time."""
    monkeypatch.setattr(nodeimages, "Store", CountingStore)
    images = ImageList(tmp_path)
    with Store(tmp_path) as store:
        store.import_file(tars.write_image(tmp_path / "x.aci", manifest_bytes=tars.manifest(name="example.com/one")))
    images.read()
    count = CountingStore.opened
    images.read()
    assert CountingStore.opened == count + 1
