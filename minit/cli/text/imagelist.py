"""The output of `image list`: fields of the images, their order, and text or JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from minit.cli.flagwords import FlagError
from minit.cli.text.columns import align, fit
from minit.cli.text.sizes import readable_size
from minit.cli.text.times import format_age, format_time
from minit.harmless import harmless
from minit.stage0.images.storedimage import StoredImage

FIELDS = ("id", "name", "size", "importtime", "lastused")
SORT_FIELDS = ("name", "importtime", "lastused", "size")

_LEGEND = {"id": "ID", "name": "NAME", "size": "SIZE", "importtime": "IMPORT TIME", "lastused": "LAST USED"}
_LISTED_ID = len("sha512-") + 12


def parse_fields(flag: str, text: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """Return the fields of a list separated by commas; FlagError if one is unknown or named twice."""
    fields = tuple(text.lower().split(","))
    for field in fields:
        if field not in allowed:
            raise FlagError(f'{flag}: expected some of {",".join(allowed)}, got "{field}"')
        if fields.count(field) > 1:
            raise FlagError(f'{flag}: "{field}" is given twice')
    return fields


def sort_images(images: Sequence[StoredImage], fields: Sequence[str], *, descending: bool) -> list[StoredImage]:
    """Return the images by these fields, the first one counting most."""
    keys = {
        "name": lambda image: image.name,
        "importtime": lambda image: image.import_time_ns,
        "lastused": lambda image: image.last_used_ns,
        "size": lambda image: image.size_bytes,
    }
    return sorted(images, key=lambda image: tuple(keys[field](image) for field in fields), reverse=descending)


def list_text(
    images: Sequence[StoredImage],
    fields: Sequence[str],
    now_ns: int,
    *,
    full: bool,
    legend: bool,
    width: int | None = None,
) -> str:
    """
    Return the images as lines of columns; `full` has whole ids, bytes and points in time.

    `width` is that of the terminal that it is for, None for anything else. Columns that are asked for in full are not
    shortened.
    """
    rows: list[Sequence[str]] = [tuple(_LEGEND[field] for field in fields)] if legend else []
    rows += [tuple(_cell(image, field, now_ns, full=full) for field in fields) for image in images]
    if width is None or full or "name" not in fields:
        return align(rows)
    return fit(rows, width, (fields.index("name"),))


def image_json(image: StoredImage) -> dict[str, object]:
    """Return an image as rkt's JSON has it, times in nanoseconds."""
    return {
        "id": image.id,
        "name": _name(image),
        "import_time": image.import_time_ns,
        "last_used_time": image.last_used_ns,
        "size": image.size_bytes,
    }


def _cell(image: StoredImage, field: str, now_ns: int, *, full: bool) -> str:
    if field == "id":
        return image.id if full else image.id[:_LISTED_ID]
    if field == "name":
        return harmless(_name(image))
    if field == "size":
        return str(image.size_bytes) if full else readable_size(image.size_bytes)
    time_ns = image.import_time_ns if field == "importtime" else image.last_used_ns
    return format_time(time_ns) if full else format_age(time_ns, now_ns)


def _name(image: StoredImage) -> str:
    return image.name if image.version is None else f"{image.name}:{image.version}"
