"""`minit trust`, and the signatures of images that keys ask for."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from minit.base.errors import ImageError, StoreError
from minit.base.progress import silent
from minit.stage0.images.signatures import Trust
from minit.stage0.images.store import Store
from minit.stage0.images.trustedkeys import KeyPlaces
from tests import tars
from tests.support.incommand import Command, command_on
from tests.support.layers import MANIFEST, REF_NAME, Layout, busybox_layer, config_document, gzipped, layer
from tests.support.registry import Registry, registry
from tests.support.signing import Keys, made_keys, sign_earlier
from tests.support.terminal import Terminal

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="imports images, which needs root")

NAME = "example.com/app"
_FORM = PublicFormat.SubjectPublicKeyInfo
SKIP = "--skip-fingerprint-review"


@pytest.fixture(scope="session")
def keys() -> Iterator[Keys]:
    """The keys of all tests."""
    with made_keys() as made:
        yield made


class Signed:
    """A data directory, a configuration, and images beside them."""

    def __init__(self, root: Path, minit: Command) -> None:
        self.root = root
        self.places = KeyPlaces(local=root / "etc", system=root / "usr")
        self._minit = minit

    def minit(self, *words: object, code: int = 0) -> str:
        """Run a command line and return its output, of a failure the error."""
        config = (f"--local-config={self.places.local}", f"--system-config={self.places.system}")
        done = self._minit(*config, *words, code=code)
        return done.stderr if code else done.stdout

    def verified(self, image: str, code: int = 0) -> str:
        """Return what `image verify` says of the signer of an image, which is the same in JSON."""
        config = (f"--local-config={self.places.local}", f"--system-config={self.places.system}")
        (facts,) = json.loads(self._minit(*config, "image", "verify", "--format=json", image, code=code).stdout)
        told = self._minit(*config, "image", "verify", image, code=code).stderr
        assert (facts["signature"] is None) == ("nobody signed it" in told)
        return told

    def trust(self, *keys: bytes, prefix: str = NAME) -> None:
        """Trust keys for images of a name."""
        for number, key in enumerate(keys):
            path = self.root / f"key{number}"
            path.write_bytes(key)
            self.minit("trust", "add", f"--prefix={prefix}", SKIP, path)

    def image(self, name: str = NAME, content: bytes = b"content", file: str = "app.aci") -> Path:
        """Write an image."""
        return tars.write_image(
            self.root / file, tars.file("rootfs/x", content), manifest_bytes=tars.manifest(name=name)
        )

    def sign(self, image: Path, signature: bytes) -> None:
        """Put a signature beside an image."""
        Path(f"{image}.asc").write_bytes(signature)

    def refused(self, image: Path | str, *words: str) -> str:
        """Return the error of the import of an image, of which nothing is left."""
        error = self.minit("fetch", *words, image, code=254)
        assert error.count("\n") == 1
        assert self.minit("image", "list", "--no-legend") == ""
        assert not [path for path in (self.root / "data/minit/cas").rglob("*") if path.is_file()]
        return error


@pytest.fixture
def signed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Signed:
    """The command, with no key yet."""
    return Signed(tmp_path, command_on(tmp_path / "data", capsys))


def test_an_image_with_a_good_signature(signed: Signed, keys: Keys) -> None:
    """An image whose name has a key is imported with a signature by it, and the store keeps the signer."""
    signed.trust(keys.public("ann"))
    image = signed.image()
    for options in (("--armor",), ("--no-armor",)):
        signed.sign(image, keys.sign("ann", image.read_bytes(), *options))
        signed.minit("fetch", image)
    with Store(signed.root / "data") as store:
        signature = store.signature(store.find(NAME).id)
    assert signature is not None
    assert (signature.key, signature.user_id) == (keys.fingerprint("ann"), "ann <ann@example.com>")
    assert signature.signed_seconds <= signature.verified_seconds
    signed.minit("image", "rm", NAME)
    assert not list((signed.root / "data/minit/cas/signature").rglob("sha512-*"))


def test_names_without_keys_need_no_signature(signed: Signed, keys: Keys) -> None:
    """A key for a name says nothing of other names, nor of a longer word, but of all names below."""
    signed.trust(keys.public("ann"))
    for name in ("example.com/app2", "example.com", "example.org/app"):
        signed.minit("fetch", signed.image(name))
    assert "must be signed" in signed.minit("fetch", signed.image(f"{NAME}/part"), code=254)
    signed.minit("trust", "--root", SKIP, signed.root / "key0")
    assert "must be signed" in signed.minit("fetch", signed.image("example.org/other"), code=254)


def test_bad_signatures(signed: Signed, keys: Keys) -> None:
    """Anything but one good signature by a trusted and valid key is refused in a line, and nothing stays."""
    signed.trust(keys.public("ann"))
    old = signed.root / f"etc/trustedkeys/prefix.d/{NAME}/{keys.fingerprint('old')}"
    old.write_bytes(keys.public("old"))
    signed.trust(keys.public("bob"), prefix="example.com/other")
    image = signed.image()
    data = image.read_bytes()
    good = keys.sign("ann", data)
    for signature, reason in (
        (keys.sign("ann", data + b"x"), "the signature is not of these bytes"),
        (keys.sign("bob", data), f"key {keys.fingerprint('bob')}, which signed the image, is not trusted for the name"),
        (sign_earlier(keys, "old", data), "the key of the signature has expired"),
        (sign_earlier(keys, "ann", data, "--default-sig-expire=1d"), "the signature has expired"),
        (keys.sign("ann", data, "--digest-algo=SHA1"), "the digest of the signature is too weak"),
        (keys.sign("ann", data, "--textmode"), "the signature is not of a binary file"),
        (good + good, "expected one signature, got several"),
        (good[: len(good) // 2], "expected one detached signature"),
        (keys.sign("ann", data, "--no-armor")[:50], "expected one detached signature"),
        (b"", "expected one detached signature"),
        (keys.gpg("--local-user", "ann@example.com", "--clearsign", given=b"text"), "expected one detached signature"),
        (bytes(1 << 17), "more than 65536 bytes"),
    ):
        signed.sign(image, signature)
        assert reason in signed.refused(image)
    Path(f"{image}.asc").unlink()
    assert f"{image}.asc: no such file" in signed.refused(image)
    os.mkfifo(f"{image}.asc")
    assert "not a regular file" in signed.refused(image)


def test_a_revoked_key(signed: Signed, keys: Keys) -> None:
    """A key that was revoked signs nothing, and is not trusted anew."""
    image = signed.image()
    before = keys.public("eve")
    signed.sign(image, keys.sign("eve", image.read_bytes()))
    signed.trust(before)
    keys.revoke("eve")
    place = signed.root / f"etc/trustedkeys/prefix.d/{NAME}/{keys.fingerprint('eve')}"
    place.write_bytes(keys.public("eve"))
    assert "the key of the signature is revoked" in signed.refused(image)
    (signed.root / "key").write_bytes(keys.public("eve"))
    assert "is revoked" in signed.minit("trust", "--root", SKIP, signed.root / "key", code=254)


def test_a_subkey_signs_for_its_key(signed: Signed, keys: Keys) -> None:
    """A signature by a subkey is one of the primary key, by whose fingerprint the key is trusted."""
    signed.trust(keys.public("sub"))
    image = signed.image()
    signed.sign(image, keys.sign("sub", image.read_bytes()))
    signed.minit("fetch", image)
    with Store(signed.root / "data") as store:
        signature = store.signature(store.find(NAME).id)
    assert signature is not None
    assert signature.key == keys.fingerprint("sub") != signature.fingerprint


def test_who_signed_is_told(signed: Signed, keys: Keys) -> None:
    """`image verify` tells the signer, or that nobody signed, and fails if no key of the signature is trusted now."""
    image = signed.image()
    signed.minit("fetch", image)
    assert "nobody signed it" in signed.verified(NAME)
    signed.trust(keys.public("ann"))
    assert "must be signed by a key that is trusted now" in signed.verified(NAME, code=254)
    signed.sign(image, keys.sign("ann", image.read_bytes()))
    signed.minit("fetch", image)
    assert f'signed by "ann <ann@example.com>", key {keys.fingerprint("ann")}, at 20' in signed.verified(NAME)
    signed.minit("--insecure-options=image", "fetch", image)  # the same content
    signed.minit("trust", "rm", f"--prefix={NAME}", keys.fingerprint("ann"))
    signed.trust(keys.public("bob"))
    assert "must be signed by a key that is trusted now" in signed.verified(NAME, code=254)
    signed.minit("--insecure-options=image", "image", "verify", NAME)


def test_a_signature_of_an_option(signed: Signed, keys: Keys) -> None:
    """--signature names the file for an image in a file, one for each, and asks for a key."""
    image = signed.image()
    path = signed.root / "elsewhere"
    path.write_bytes(keys.sign("ann", image.read_bytes()))
    assert "no key is trusted for the name" in signed.refused(image, f"--signature={path}")
    signed.trust(keys.public("ann"))
    signed.minit("prepare", f"--stage1-path={image}", image, f"--signature={signed.root}/none", code=254)
    signed.minit("fetch", f"--signature={path}", image)
    for words in ((NAME,), (f"oci:{image}",), ("docker://busybox",)):
        assert "is no ACI file" in signed.minit("fetch", f"--signature={path}", *words, code=254)
    assert "1 signatures for 2 images" in signed.minit("fetch", f"--signature={path}", image, image, code=254)


def test_insecure_images(signed: Signed, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """--insecure-options=image imports an image without a signature, once; another import of the file is verified."""
    now = time.time_ns
    monkeypatch.setattr("minit.stage0.images.store.time.time_ns", lambda: now() + (3600 << 30))  # the file is old
    signed.trust(keys.public("ann"))
    image = signed.image()
    signed.minit("--insecure-options=image", "fetch", image)
    assert "must be signed" in signed.minit("fetch", "--pull-policy=new", image, code=254)
    signed.sign(image, keys.sign("ann", image.read_bytes()))
    signed.minit("fetch", "--pull-policy=new", image)
    signed.sign(image, b"")
    signed.minit("fetch", "--pull-policy=new", image)  # unchanged since, and so not read again
    signed.minit("trust", "rm", f"--prefix={NAME}", keys.fingerprint("ann"))
    signed.trust(keys.public("bob"))
    assert "is not imported" in signed.minit("fetch", "--pull-policy=new", image, code=254)


def test_layers_of_a_signed_name(signed: Signed, keys: Keys) -> None:
    """An image of layers in a file has no signature, and cannot take a name that has keys."""
    layout = Layout()
    layout.add(busybox_layer(), tag=f"{NAME}:1")
    path = layout.write_archive(signed.root / "app.tar")
    signed.trust(keys.public("ann"))
    assert "only an ACI can have a signature" in signed.refused(f"oci-archive:{path}")
    (signed.root / "Containerfile").write_text(f"FROM oci-archive:{path}\n")
    assert "only an ACI can have a signature" in signed.minit("image", "build", signed.root, code=254)
    signed.minit("--insecure-options=image", "fetch", f"oci-archive:{path}")


def test_a_stage1_image_of_a_file(signed: Signed, keys: Keys) -> None:
    """--stage1-path follows the rule of all images."""
    signed.minit("fetch", signed.image())
    signed.trust(keys.public("ann"), prefix="example.com/stage1")
    stage1 = signed.image("example.com/stage1", file="stage1.aci")
    assert "must be signed" in signed.minit("prepare", f"--stage1-path={stage1}", NAME, "--exec=/x", code=254)


def test_a_file_that_is_exchanged(signed: Signed, keys: Keys) -> None:
    """Whoever changes the file during the import gets no bytes into the store but the verified ones."""
    signed.trust(keys.public("ann"))
    good = signed.image(content=bytes(1 << 20), file="good.aci").read_bytes()
    bad = signed.image(content=b"\1" * (1 << 20), file="bad.aci").read_bytes()
    image = signed.root / "app.aci"
    image.write_bytes(good)
    signed.sign(image, keys.sign("ann", good))
    steps: list[str] = []

    def exchange(step: str, done: int, total: int | None) -> None:
        if not steps:
            with open(image, "r+b") as file:  # the same file, which is open
                file.write(bad)
        steps.append(step)

    with Store(signed.root / "data") as store:
        imported = store.import_file(image, exchange, trust=Trust(places=signed.places))
        assert steps
        assert imported.id == f"sha512-{hashlib.sha512(good).hexdigest()[:64]}"
        writing = threading.Event()

        def write_both() -> None:
            with open(image, "r+b") as file:
                while not writing.is_set():
                    for content in (bad, good):
                        file.seek(0)
                        file.write(content)

        thread = threading.Thread(target=write_both)
        thread.start()
        try:
            for _ in range(10):
                try:
                    again = store.import_file(image, silent, trust=Trust(places=signed.places))
                except (ImageError, StoreError):
                    continue
                assert again.id == imported.id
        finally:
            writing.set()
            thread.join()
        assert [each.id for each in store.list()] == [imported.id]


def test_keys_are_added_listed_and_removed(signed: Signed, keys: Keys) -> None:
    """A key is stored armoured in rkt's place, by its fingerprint, and removed by any form of the fingerprint."""
    for name, options in (("ann", ()), ("bob", ("--no-armor",))):
        (signed.root / name).write_bytes(keys.public(name, *options))
    said = signed.minit("trust", f"--prefix={NAME}", SKIP, signed.root / "ann")
    ann, bob = keys.fingerprint("ann"), keys.fingerprint("bob")
    place = signed.root / f"etc/trustedkeys/prefix.d/{NAME}/{ann}"
    assert f'Added key for prefix "{NAME}" at "{place}"' in said
    assert ann.upper() in said.replace(" ", "")
    assert "\tann <ann@example.com>\n" in said
    signed.minit("trust", "add", "--root", SKIP, signed.root / "bob")
    root = signed.root / f"etc/trustedkeys/root.d/{bob}"
    assert root.read_bytes().startswith(b"-----BEGIN PGP PUBLIC KEY BLOCK-----")
    listed = json.loads(signed.minit("trust", "list", "--format=json"))
    assert [(key["fingerprint"], key["prefix"], key["masked"]) for key in listed] == [
        (bob, None, False),
        (ann, NAME, False),
    ]
    assert [line.split()[0] for line in signed.minit("trust", "list", "--prefix=other").splitlines()[1:]] == ["(all"]
    assert "is trusted for prefix other" in signed.minit("trust", "rm", "--prefix=other", ann, code=254)
    signed.minit("trust", "rm", "--root", f"0x{bob.upper()}")
    spaced = " ".join(ann[at : at + 4] for at in range(0, 40, 4))
    assert "are not verified any more" in signed.minit("trust", "rm", f"--prefix={NAME}", spaced)
    assert signed.minit("trust", "list", "--no-legend") == ""


def test_a_key_of_the_system_is_masked(signed: Signed, keys: Keys) -> None:
    """An empty local file is put over a key of the system by rm, and the name still needs a signature."""
    fingerprint = keys.fingerprint("ann")
    system = signed.root / f"usr/trustedkeys/prefix.d/{NAME}/{fingerprint}"
    system.parent.mkdir(parents=True)
    system.write_bytes(keys.public("ann"))
    image = signed.image()
    signed.sign(image, keys.sign("ann", image.read_bytes()))
    signed.minit("fetch", image)
    signed.minit("image", "rm", NAME)
    signed.minit("trust", "rm", f"--prefix={NAME}", fingerprint)
    mask = signed.root / f"etc/trustedkeys/prefix.d/{NAME}/{fingerprint}"
    assert mask.read_bytes() == b"" != system.read_bytes()
    assert "every key for the name is masked" in signed.minit("fetch", image, code=254)
    assert signed.minit("trust", "list", f"--prefix={NAME}", "--no-legend") == ""
    signed.trust(keys.public("ann"))
    signed.minit("fetch", image)


def test_what_is_no_key(signed: Signed, keys: Keys) -> None:
    """Files that are no public key, keys to be downloaded and prefixes that no image has are refused."""
    path = signed.root / "key"
    for content in (b"", b"text", keys.sign("ann", b"data"), keys.public("ann")[:100]):
        path.write_bytes(content)
        assert "expected a public key of OpenPGP" in signed.minit("trust", "--root", SKIP, path, code=254)
    path.write_bytes(keys.public("ann"))
    for words, reason in (
        (("--prefix=Example.com", path), "expected the beginning of an image name"),
        (("--prefix=https://example.com", path), "expected the beginning of an image name"),
        ((path,), "give --prefix=NAME"),
        (("--root", "--prefix=a", path), "exclude each other"),
        (("--root", "https://example.com/key"), "minit downloads no keys"),
        (("--prefix=example.com",), "minit discovers no keys"),
        (("--root", path), "nobody can be asked without a terminal"),
    ):
        assert reason in signed.minit("trust", *words, code=254)
    (signed.root / "etc/trustedkeys/root.d").mkdir(parents=True)
    (signed.root / "etc/trustedkeys/root.d/backup~").touch()
    assert "expected a key in a file named by its fingerprint" in signed.minit("fetch", signed.image(), code=254)


def test_somebody_is_asked(signed: Signed, keys: Keys) -> None:
    """At a terminal the key is shown, and trusted after the word yes alone."""
    (signed.root / "key").write_bytes(keys.public("ann"))
    words = [sys.executable, "-m", "minit", f"--local-config={signed.places.local}", "trust", "--root"]
    for answer, code in (("no", 254), ("yes", 0)):
        with Terminal() as terminal:
            process = subprocess.Popen([*words, signed.root / "key"], **terminal.options)
            terminal.expect(keys.fingerprint("ann").upper()[-4:].encode() + b".*trust this key")
            terminal.type(f"{answer}\n".encode())
            assert terminal.finish(process) == code
    assert [key["fingerprint"] for key in json.loads(signed.minit("trust", "list", "--format=json"))] == [
        keys.fingerprint("ann")
    ]


def test_without_gnupg(signed: Signed, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without gpgv no image of a name with keys is imported, and without gpg no key is trusted."""
    signed.trust(keys.public("ann"))
    image = signed.image()
    signed.sign(image, keys.sign("ann", image.read_bytes()))
    monkeypatch.setenv("PATH", str(signed.root))
    assert "apt install gpgv" in signed.refused(image)
    assert "apt install gpg)" in signed.minit("trust", "--root", SKIP, signed.root / "key0", code=254)


class Policed:
    """A registry with images of one repository, and a policy of signatures in the home of the user."""

    def __init__(self, signed: Signed, keys: Keys, served: Registry, layout: Layout) -> None:
        self.signed = signed
        self.served = served
        self.layout = layout
        self.keys = keys
        self.name = f"{served.host}/team/box"
        self._home = signed.root / "home/.config/containers"
        (self._home / "registries.d").mkdir(parents=True)
        places = f"lookaside: file://{signed.root}/lookaside\n    use-sigstore-attachments: true"
        (self._home / "registries.d/own.yaml").write_text(f"docker:\n  {served.host}:\n    {places}\n")
        (signed.root / "ann").write_bytes(keys.public("ann"))

    def obey(self, *requirements: dict[str, object], scope: str = "") -> Path:
        """Write a policy for the images of the registry; others are accepted."""
        rows = {scope or self.served.host: list(requirements)}
        policy = {"default": [{"type": "insecureAcceptAnything"}], "transports": {"docker": rows}}
        path = self._home / "policy.json"
        path.write_text(json.dumps(policy))
        return path

    def signed_by(self, **fields: object) -> dict[str, object]:
        """Return the requirement of a signature by ann."""
        return {"type": "signedBy", "keyType": "GPGKeys", "keyPath": str(self.signed.root / "ann"), **fields}

    def statement(self, digest: str, tag: str, kind: str) -> bytes:
        """Return what is signed: that an image has a name."""
        critical = {
            "identity": {"docker-reference": f"{self.name}:{tag}"},
            "image": {"docker-manifest-digest": digest},
            "type": kind,
        }
        return json.dumps({"critical": critical, "optional": {}}).encode()

    def sign(self, digest: str, tag: str, name: str = "ann") -> None:
        """Put a simple signature beside the registry."""
        place = self.signed.root / f"lookaside/team/box@{digest.replace(':', '=')}/signature-1"
        place.parent.mkdir(parents=True, exist_ok=True)
        text = self.statement(digest, tag, "atomic container signature")
        place.write_bytes(self.keys.gpg("--local-user", f"{name}@example.com", "--sign", given=text))

    def attach(self, digest: str, tag: str) -> Path:
        """Put a signature of sigstore's into the registry, and return the file of the public key."""
        key = ec.generate_private_key(ec.SECP256R1())
        public = key.public_key().public_bytes(Encoding.PEM, _FORM)
        path = self.signed.root / "cosign.pub"
        path.write_bytes(public)
        text = self.statement(digest, tag, "cosign container image signature")
        signature = base64.b64encode(key.sign(text, ec.ECDSA(SHA256()))).decode()
        own = {"annotations": {"dev.cosignproject.cosign/signature": signature}}
        statement = {**self.layout.blob(text, "application/vnd.dev.cosign.simplesigning.v1+json"), **own}
        config = self.layout.document(config_document([]), "application/vnd.oci.image.config.v1+json")
        document: dict[str, object] = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config}
        entry = self.layout.document({**document, "layers": [statement]}, MANIFEST)
        self.layout.index.append({**entry, "annotations": {REF_NAME: f"{digest.replace(':', '-')}.sig"}})
        return path

    def fetch(self, end: str, *words: str, code: int = 0) -> str:
        """Fetch an image by a tag or a digest."""
        return self.signed.minit("--insecure-options=http", *words, "fetch", f"docker://{self.name}{end}", code=code)

    def refused(self, tag: str, reason: str, rule: str) -> None:
        """Fetch an image in vain: a line names image, reason, rule and remedy, and the store is as before."""
        before = self.stored()
        error = self.fetch(f":{tag}", code=254)
        assert error.count("\n") == 1
        assert error.startswith(f'fetch: cannot fetch "docker://{self.name}:{tag}": skopeo: ')
        assert reason in error
        assert f"the rule of {self._home}/policy.json is {rule}: " in error
        assert error.endswith("or fetch the image unverified with --insecure-options=image\n")
        assert self.signed.minit("image", "list", "--no-legend") == ""
        assert self.stored() == before

    def stored(self) -> set[Path]:
        """Return the files of the store."""
        return {path for path in (self.signed.root / "data/minit/cas").rglob("*") if path.is_file()}

    def move(self, tag: str, end: str) -> None:
        """Let a tag of the registry mean the image of another tag."""
        index = self.layout.index
        entry = {**next(one for one in index if one["annotations"] == {REF_NAME: end}), "annotations": {REF_NAME: tag}}
        index[:] = [*(one for one in index if one["annotations"] != {REF_NAME: tag}), entry]

    def sign_by_skopeo(self, key: Path, passphrase: Path, tag: str) -> None:
        """Push the image of a tag to its place again, with a signature of sigstore's by skopeo."""
        layout = self.layout.write_directory(self.signed.root / "pushed")
        options = (f"--sign-by-sigstore-private-key={key}", f"--sign-passphrase-file={passphrase}")
        self.skopeo(
            "copy", "-q", "--dest-tls-verify=false", *options, f"oci:{layout}:{tag}", f"docker://{self.name}:{tag}"
        )

    def skopeo(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run the machine's skopeo to a good end."""
        command = ["skopeo", "--insecure-policy", *map(str, words)]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=90)


@pytest.fixture
def policed(signed: Signed, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> Iterator[Policed]:
    """A registry with two images, of the tags good and other, of which ann has signed one."""
    if shutil.which("skopeo") is None:
        pytest.skip("no skopeo on PATH")
    monkeypatch.setenv("HOME", str(signed.root / "home"))
    layout = Layout()
    for tag in ("good", "other"):
        layout.add(busybox_layer(), layer(tars.file("etc/tag", tag.encode())), tag=tag)
    with registry({"team/box": layout}) as served:
        made = Policed(signed, keys, served, layout)
        made.sign(digest_of(layout, "good"), "good")
        yield made


def digest_of(layout: Layout, tag: str) -> str:
    """Return the digest of the image of a tag."""
    return next(str(one["digest"]) for one in layout.index if one["annotations"] == {REF_NAME: tag})


def test_a_policy_of_signatures(policed: Policed) -> None:
    """An image of a registry is imported only with the signature that the policy asks for."""
    good, other = (digest_of(policed.layout, tag) for tag in ("good", "other"))
    path = policed.obey(policed.signed_by(signedIdentity={"type": "matchExact"}))
    policed.fetch(":good")
    verified = policed.signed.verified(f"{policed.name}:good")
    assert f"allowed by {path}: signedBy {policed.signed.root}/ann" in verified
    with Store(policed.signed.root / "data") as store:
        image = store.find(f"{policed.name}:good")
        assert image.digests is not None
        assert image.digests.manifests == (good,)
    policed.obey(policed.signed_by())
    policed.fetch(f"@{good}")
    for end in (":other", f"@{other}"):
        assert "A signature was required, but no signature exists" in policed.fetch(end, code=254)
    policed.sign(other, "other", "bob")
    assert "cannot fetch" in policed.fetch(":other", code=254)
    policed.sign(other, "good")  # another image, which ann has signed for another tag
    assert "is not accepted" in policed.fetch(":other", code=254)
    policed.fetch(":other", "--insecure-options=http,image")
    assert "nobody signed it" in policed.signed.verified(f"{policed.name}:other")


def test_a_simple_signature_of_another_image(policed: Policed) -> None:
    """A tag that means another image now is refused, without a signature and with that of the image before."""
    rule = policed.signed_by()
    policed.obey(rule)
    policed.refused("other", "A signature was required, but no signature exists", f"signedBy {rule['keyPath']}")
    good, other = (digest_of(policed.layout, tag) for tag in ("good", "other"))
    policed.move("good", "other")
    policed.refused("good", "A signature was required, but no signature exists", f"signedBy {rule['keyPath']}")
    place = policed.signed.root / "lookaside/team"
    (place / f"box@{good.replace(':', '=')}").rename(place / f"box@{other.replace(':', '=')}")
    policed.refused("good", f"Signature for digest {good} does not match", f"signedBy {rule['keyPath']}")


def test_a_signature_by_skopeo_itself(policed: Policed) -> None:
    """An image that skopeo has signed for sigstore is fetched; no, another's and an older signature are refused."""
    if "generate-sigstore-key" not in policed.skopeo("--help").stdout:
        pytest.skip("the machine's skopeo makes no keys of sigstore")
    passphrase = policed.signed.root / "passphrase"
    passphrase.write_text("word\n")
    for key in ("own", "foreign"):
        prefix = policed.signed.root / key
        policed.skopeo("generate-sigstore-key", f"--output-prefix={prefix}", f"--passphrase-file={passphrase}")
    public, foreign = policed.signed.root / "own.pub", policed.signed.root / "foreign.pub"
    policed.sign_by_skopeo(policed.signed.root / "own.private", passphrase, "good")
    path = policed.obey({"type": "sigstoreSigned", "keyPaths": [str(foreign), str(public)]})
    policed.fetch(":good")
    assert f"allowed by {path}: sigstoreSigned {foreign} {public}" in policed.signed.verified(f"{policed.name}:good")
    policed.signed.minit("image", "rm", f"{policed.name}:good")
    policed.obey({"type": "sigstoreSigned", "keyPath": str(foreign)})
    policed.refused("good", "signature verification failed", f"sigstoreSigned {foreign}")
    policed.obey({"type": "sigstoreSigned", "keyPath": str(public)})
    policed.refused("other", "A signature was required, but no signature exists", f"sigstoreSigned {public}")
    good, other = (digest_of(policed.layout, tag) for tag in ("good", "other"))
    policed.move("good", "other")
    policed.move(f"{other.replace(':', '-')}.sig", f"{good.replace(':', '-')}.sig")
    policed.refused("good", f"Signature for digest {good} does not match", f"sigstoreSigned {public}")


def test_a_policy_about_a_tag(policed: Policed) -> None:
    """What a policy says of a tag holds, although minit asks a registry for digests."""
    policed.obey({"type": "reject"}, scope=f"{policed.name}:other")
    policed.fetch(":good")
    policed.signed.minit("image", "rm", f"{policed.name}:good")
    policed.refused("other", "is rejected by policy", "reject")


def test_a_registry_with_two_images_for_a_tag(policed: Policed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that answers for a tag first with another image than the signed one gets neither into the store."""
    policed.obey(policed.signed_by())
    find, asked = policed.served.find, []

    def lie(path: str) -> tuple[bytes, str] | None:
        if path.endswith("/manifests/good"):
            asked.append(path)
            return find(path if len(asked) > 1 else path.replace("/good", "/other"))
        return find(path)

    monkeypatch.setattr(policed.served, "find", lie)
    assert "the registry has two images for one tag" in policed.fetch(":good", code=254)
    assert policed.signed.minit("image", "list", "--no-legend") == ""


def test_an_image_of_docker_by_a_policy(policed: Policed) -> None:
    """An image of Docker's form, whose documents skopeo writes anew, keeps no digest that no signature proves."""
    base = busybox_layer()
    kind = "application/vnd.docker."
    config = policed.layout.document(config_document([base]), f"{kind}container.image.v1+json")
    packed = policed.layout.blob(gzipped(base), f"{kind}image.rootfs.diff.tar.gzip")
    document = {"schemaVersion": 2, "mediaType": f"{kind}distribution.manifest.v2+json", "config": config}
    entry = policed.layout.document({**document, "layers": [packed]}, str(document["mediaType"]))
    policed.layout.index.append({**entry, "annotations": {REF_NAME: "docker"}})
    policed.sign(str(entry["digest"]), "docker")
    policed.obey(policed.signed_by())
    policed.fetch(":docker")
    with Store(policed.signed.root / "data") as store:
        image = store.find(f"{policed.name}:docker")
        assert image.digests is not None
        assert image.digests.manifests == ()
        assert store.signature(image.id) is not None


def test_a_policy_of_sigstore(policed: Policed) -> None:
    """A key of sigstore's is obeyed where skopeo can verify such signatures, and else no image is imported."""
    good, other = (digest_of(policed.layout, tag) for tag in ("good", "other"))
    public = policed.attach(good, "good")
    policed.obey({"type": "sigstoreSigned", "keyPath": str(public)})
    done = policed.signed
    if is_without_sigstore(policed):
        assert "sigstore disabled" in policed.fetch(":good", code=254)
    else:
        policed.fetch(":good")
        assert f"sigstoreSigned {public}" in done.verified(f"{policed.name}:good")
    assert "cannot fetch" in policed.fetch(f"@{other}", code=254)
    policed.attach(good, "good")  # by another key
    public.write_bytes(ec.generate_private_key(ec.SECP256R1()).public_key().public_bytes(Encoding.PEM, _FORM))
    assert "cannot fetch" in policed.fetch(":good", code=254)


def is_without_sigstore(policed: Policed) -> bool:
    """Tell whether skopeo is built without sigstore, as Debian 12's is."""
    words = ["skopeo", "copy", "--src-tls-verify=false", "--remove-signatures", f"docker://{policed.name}:good"]
    done = subprocess.run([*words, f"dir:{policed.signed.root}/copy"], capture_output=True, text=True, check=False)
    return "sigstore disabled" in done.stderr
