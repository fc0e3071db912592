"""The digests of an image of layers as a line of text."""

from __future__ import annotations

import pytest

from minit.stage0.images.storedimage import ImageDigests, joined, parse_digests

ONE, TWO, THREE = (f"sha256:{digit * 64}" for digit in "123")


def test_a_line_has_all_digests() -> None:
    """What is written is read again; other text is none."""
    for digests in (ImageDigests(configuration=ONE), ImageDigests(configuration=ONE, manifests=(TWO, THREE))):
        assert parse_digests(digests.text) == digests
    for text in ("", "sha256:12", f"{ONE} x", "../../etc/passwd", f"{ONE}{TWO}"):
        assert parse_digests(text) is None


@pytest.mark.parametrize(
    ("earlier", "latest", "expected"),
    [
        (None, ImageDigests(configuration=ONE), ImageDigests(configuration=ONE)),
        (
            ImageDigests(configuration=ONE, manifests=(TWO,)),
            ImageDigests(configuration=ONE, manifests=(THREE,)),
            ImageDigests(configuration=ONE, manifests=(TWO, THREE)),
        ),
        (
            ImageDigests(configuration=ONE, manifests=(TWO,)),
            ImageDigests(configuration=ONE, manifests=(TWO,)),
            ImageDigests(configuration=ONE, manifests=(TWO,)),
        ),
        (
            ImageDigests(configuration=ONE, manifests=(TWO,)),
            ImageDigests(configuration=THREE),
            ImageDigests(configuration=THREE),
        ),
    ],
)
def test_a_configuration_keeps_its_manifests(
    earlier: ImageDigests | None, latest: ImageDigests, expected: ImageDigests
) -> None:
    """Manifests add up as long as the configuration is the same, each once."""
    assert joined(earlier, latest) == expected


def test_manifests_are_limited() -> None:
    """An image that is pushed again and again keeps its latest manifests."""
    digests = ImageDigests(configuration=ONE)
    for number in range(100):
        digests = joined(digests, ImageDigests(configuration=ONE, manifests=(f"sha256:{number:064x}",)))
    assert len(digests.manifests) < 100 and digests.manifests[-1] == f"sha256:{99:064x}"
