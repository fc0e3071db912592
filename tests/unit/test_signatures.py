"""What gpgv and gpg answer, keys in armour, the keys of a name, and the words of a policy for an image."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from minit.base.errors import ImageError
from minit.stage0.images.registry import requirements_for
from minit.stage0.images.signatures import Signature, SignatureKind, parse_signature, parse_status
from minit.stage0.images.trustedkeys import KeyFile, is_for, parse_colons, unarmoured, usable_keys

KEY, OTHER = "73E6CB18C1447D944ECD492E5816C7C29D5AE0E2", "AB" * 20
GOOD = (
    "NEWSIG",
    f"KEY_CONSIDERED {KEY} 0",
    "SIG_ID GRpFWzm8QA9H1cjdf6fhC6HU4ic 2026-11-28 1795870366",
    "GOODSIG 5816C7C29D5AE0E2 Ann%0A <ann@example.com>",
    f"VALIDSIG {OTHER} 2026-11-28 1795870366 0 4 0 22 8 00 {KEY}",
)
BAD = (
    "NEWSIG",
    "BADSIG 5816C7C29D5AE0E2 Ann",
    "EXPSIG 5816C7C29D5AE0E2 Ann",
    "EXPKEYSIG 5816C7C29D5AE0E2 Ann",
    "REVKEYSIG 5816C7C29D5AE0E2 Ann",
    "ERRSIG 5816C7C29D5AE0E2 22 8 00 1795870366 9 " + KEY,
    "NO_PUBKEY 5816C7C29D5AE0E2",
    "NODATA 1",
    "FAILURE gpg-exit 33554433",
    "UNEXPECTED 0",
    "SOMETHING new",
    *GOOD[3:],
)


def status(*lines: str) -> str:
    """Return status lines of gpgv."""
    return "".join(f"[GNUPG:] {line}\n" for line in lines)


def test_a_good_signature() -> None:
    """The two keys, the user and the time are those of the status lines, and the record of a signature reads back."""
    found = parse_status(status(*GOOD), 0)
    assert (found.key, found.fingerprint) == (KEY.lower(), OTHER.lower())
    assert (found.user_id, found.signed_seconds) == ("Ann\\x0a <ann@example.com>", 1795870366)
    by_policy = Signature(kind=SignatureKind.POLICY, policy="/p", requirements=("signedBy /k",), verified_seconds=2)
    for signature in (found, by_policy):
        assert parse_signature(json.dumps(signature.document).encode(), "record") == signature


@given(st.lists(st.sampled_from(GOOD + BAD)), st.sampled_from(BAD), st.integers(0, 9))
def test_one_bad_line_is_enough(lines: list[str], bad: str, place: int) -> None:
    """Whatever else gpgv says, a line that is not of one good signature is a refusal."""
    # The last of the bad lines is bad beside its like.
    assume(bad not in GOOD or bad in lines)
    with pytest.raises(ImageError):
        parse_status(status(*lines[:place], bad, *lines[place:]), 0)
    with pytest.raises(ImageError):
        parse_status(status(*GOOD[:place], bad, *GOOD[place:]), 0)


@given(st.text(), st.integers(0, 2))
def test_any_text_is_no_signature(text: str, code: int) -> None:
    """No text makes the parser fail in another way, and a failed gpgv or a missing line is a refusal."""
    for told in (text, status(text), status(*GOOD[:3], text), status(*GOOD)[:-1]):
        with pytest.raises(ImageError):
            parse_status(told, code)
    for number in (0, 3, 4):
        with pytest.raises(ImageError):
            parse_status(status(*GOOD[:number], *GOOD[number + 1 :]), 0)
    with pytest.raises(ImageError):
        parse_status(status(*GOOD), code + 1)


@pytest.mark.parametrize(
    ("old", "new"), [(" 8 00 ", " 2 00 "), (" 8 00 ", " 1 00 "), (" 8 00 ", " 8 01 "), (KEY, KEY[1:]), (KEY, "")]
)
def test_weak_and_odd_signatures(old: str, new: str) -> None:
    """MD5, SHA-1, signatures of text and half fingerprints are refused."""
    with pytest.raises(ImageError):
        parse_status(status(*GOOD).replace(old, new), 0)


@given(st.binary())
def test_armour(data: bytes) -> None:
    """Of armour the packets are read, of packets all bytes, and nothing of other files; no file makes it fail."""
    unarmoured(data)
    unarmoured(b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n" + data + b"\n-----END PGP PUBLIC KEY BLOCK-----\n")
    assert unarmoured(b"\x98" + data) == b"\x98" + data
    assert unarmoured(b"text") is None


@given(st.text())
def test_listings_of_gpg(text: str) -> None:
    """Records that are none give no key, and a key has its subkeys, users and state."""
    parse_colons(text)
    listing = f"{text.split('pub')[0]}\npub:e:255:22:X:1:::u:::sc::::::\nfpr:::::::::{KEY}:\nuid:e::::1::H::A\\x3aB::\n"
    key = parse_colons(f"{listing}sub:e:255:22:Y:1::::::s::::::\nfpr:::::::::{OTHER}:\n")[-1]
    assert (key.fingerprint, key.subkeys, key.user_ids) == (KEY.lower(), (OTHER.lower(),), ("A:B",))
    assert key.unusable == "expired"


def test_keys_and_masks_of_a_name() -> None:
    """A mask removes the key of the same or a wider scope, and a key of a prefix is one again behind a mask of all."""

    def file(prefix: str | None, *, local: bool = False, mask: bool = False) -> KeyFile:
        return KeyFile(fingerprint="f", prefix=prefix, path=Path("f"), is_local=local, is_mask=mask)

    system, of_prefix = file(None), file("a/b")
    mask_of_all, mask = file(None, local=True, mask=True), file("a/b", local=True, mask=True)
    assert usable_keys([mask_of_all, system]) == []
    assert usable_keys([system, mask]) == []
    assert usable_keys([of_prefix, mask_of_all, system]) == [of_prefix]
    assert usable_keys([mask, of_prefix, system]) == []
    assert [is_for(of_prefix, name) for name in ("a/b", "a/b/c", "a/bc", "a", "b")] == [True, True, False, False, False]


def test_words_of_a_policy(tmp_path: Path) -> None:
    """The narrowest scope of a policy counts, and a policy that accepts everything asks nothing of any image."""
    accept, reject = {"type": "insecureAcceptAnything"}, {"type": "reject"}
    signed = {"type": "signedBy", "keyType": "GPGKeys", "keyPath": "/key"}
    rows = {
        "a.example.com/x:1": [reject],
        "a.example.com/x": [signed],
        "*.example.com": [accept],
        "b.org/one": [signed, reject],
    }
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({"default": [reject], "transports": {"docker": rows}}))
    for wanted, requirements in (
        ("a.example.com/x:1", ("reject",)),
        ("a.example.com/x:2", ("signedBy /key",)),
        ("a.example.com/x/y@sha256:0", ("signedBy /key",)),
        ("a.example.com/z:1", ()),
        ("b.org/one:1", ("reject", "signedBy /key")),
        ("b.org:5000/one:1", ("reject",)),
    ):
        assert requirements_for(f"docker://{wanted}", path) == requirements
    for document in ({"default": [accept]}, {"default": [accept], "transports": {"docker-daemon": {"": [accept]}}}):
        path.write_text(json.dumps(document))
        assert requirements_for("docker://a/x:1", path) is None
    for text in ("", "{", '{"default": 1}'):
        path.write_text(text)
        assert requirements_for("docker://a/x:1", path) == ()
    assert requirements_for("docker://a/x:1", tmp_path / "none") == ()
