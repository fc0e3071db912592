"""Images from registries and from other stores of this machine, and to registries, by skopeo(1)."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from minit.archives.imagenames import (
    CONTAINERS_STORAGE,
    DIR,
    REGISTRY_SCHEMES,
    SKOPEO_TRANSPORTS,
    ImageName,
    parse_image_name,
)
from minit.archives.oci import configuration_of, entry_for
from minit.base.errors import ImageError, MinitError, StoreError, describe
from minit.base.processors import Processor, this_processor
from minit.base.progress import Progress
from minit.base.value import Value
from minit.linux.loop import wait_readable
from minit.linux.process import ending_with_caller
from minit.manifest.reader import Node, read_json

_MESSAGE = re.compile(r'msg="((?:[^"\\]|\\.)*)"')
_SHOWN_LIMIT = 500
# `[DRIVER@ROOT]` before a name of podman's store, containers-storage-transport(5)
_STORAGE = re.compile(r"\[[^]]*\]")
_IMAGE_ID = re.compile(r"@?(?:sha256:)?[0-9a-f]{64}|@[0-9a-f]+")
_NESTING_LIMIT = 4  # of indexes
_LOOK_SECONDS = 1.0
_OUTPUT_BYTES = 1 << 16
_WITHOUT_TLS = (
    ": containers-registries.conf(5) says which registries have no certificates,"
    " or for one command --insecure-options=http,tls"
)
_WORDS_OF_POLICY = ("Source image rejected", "trust policy")
_REMEDIES_OF_POLICY = {
    "no signature exists": "sign the image, name the place of the signatures in containers-registries.d(5), ",
    "sigstore disabled": "install a skopeo that verifies signatures of sigstore (Debian 13 has one), ",
}
_ACCEPT = "insecureAcceptAnything"
_FATAL = "level=fatal"
_ABSENT = re.compile(r"skopeo: .*(manifest|name) unknown")
_WORDS_OF_TLS = ("tls: ", "x509: ", "server gave HTTP response to HTTPS client")


class SkopeoSource(Value):
    """
    An image in the words of skopeo, with the name if there is one, or else a `title`.

    A registry is not asked again about a remote image while the store has an image of the name.
    """

    wanted: str
    name: ImageName | None
    title: str = ""
    is_remote: bool = False

    def at(self, digest: str) -> str:
        """Return skopeo's words for an image of the same repository of a registry, by digest."""
        assert self.name is not None
        return f"docker://{self.name.host}/{self.name.repository}@{digest}"


class RawManifest(Value):
    """
    The facts in a manifest that skopeo reads before the image is copied.

    `wanted` names the image in later calls; in a registry the words mean the same image for ever. `digest` is the
    digest of the manifest or index there, None for another store, `configuration` the configuration's, if known, and
    `document` the manifest itself.
    """

    wanted: str
    digest: str | None = None
    configuration: str | None = None
    document: bytes = b""


def policy_file() -> Path:
    """Return the file of the policy that skopeo obeys, containers-policy.json(5)."""
    own = Path.home() / ".config/containers/policy.json"
    return own if own.exists() else Path("/etc/containers/policy.json")


def requirements_for(wanted: str, policy: Path) -> tuple[str, ...] | None:
    """
    Return the requirements of a policy for an image of a registry by tag; None if no image at all has to be signed.

    skopeo itself reads the policy, decides, and complains of a broken one.
    """
    try:
        document = read_json(policy.read_bytes(), str(policy))
        default = _words(document["default"])
        transports = {name: _members(node) for name, node in _members(document["transports"]).items()}
        rows = {name: {scope: _words(node) for scope, node in each.items()} for name, each in transports.items()}
    except (OSError, MinitError):
        return ()
    if {*default, *(word for each in rows.values() for words in each.values() for word in words)} <= {_ACCEPT}:
        return None
    own = rows.get("docker", {})
    chosen = next((own[scope] for scope in _scopes(wanted.removeprefix("docker://")) if scope in own), default)
    return tuple(sorted(chosen - {_ACCEPT}))


def _members(node: Node) -> dict[str, Node]:
    value = node.if_object().raw() if node.given else {}
    return {name: Node(member, node, name) for name, member in value.items()} if isinstance(value, dict) else {}


def _words(requirements: Node) -> set[str]:
    """Return the types of requirements, and behind each the files of keys, if there are any."""
    return {
        " ".join(
            (
                one["type"].string(),
                *([one["keyPath"].string()] if one["keyPath"].given else ()),
                *one["keyPaths"].each(Node.string),
            )
        )
        for one in requirements.elements()
    }


def _scopes(name: str) -> Iterator[str]:
    """Yield the scopes of a policy that are for an image, the narrowest first."""
    yield name
    path = name.rpartition("@")[0] or name.rpartition(":")[0]
    while path:
        yield path
        path = path.rpartition("/")[0]
    host = name.partition("/")[0]
    while "." in host:
        host = host.partition(".")[2]
        yield f"*.{host}"
    yield ""


def tells_absence(message: str) -> bool:
    """Tell whether the message of a failure means that a registry has no such image."""
    return _ABSENT.search(message) is not None


def skopeo_source(reference: str) -> SkopeoSource:
    """Return the source of a reference to a registry or to another store; ImageError for no source."""
    for scheme in REGISTRY_SCHEMES:
        if reference.startswith(scheme):
            name = parse_image_name(reference.removeprefix(scheme))
            end = f"@{name.digest}" if name.digest else f":{name.tag}"
            return SkopeoSource(wanted=f"docker://{name.host}/{name.repository}{end}", name=name, is_remote=True)
    transport, _, rest = reference.partition(":")
    assert transport in SKOPEO_TRANSPORTS
    if not rest:
        raise ImageError(f'"{reference}" names no image: expected something after the colon')
    if transport == DIR:
        path = Path(rest).resolve()
        return SkopeoSource(wanted=f"{DIR}:{path}", name=None, title=path.name)
    text = _STORAGE.sub("", rest, count=1) if transport == CONTAINERS_STORAGE else rest
    if _IMAGE_ID.fullmatch(text):
        return SkopeoSource(wanted=reference, name=None, title=text.lstrip("@").removeprefix("sha256:")[:12])
    return SkopeoSource(wanted=reference, name=parse_image_name(text))


def registry_target(text: str) -> SkopeoSource:
    """Return the place in a registry for an image to be pushed; ImageError for a name that is none, or has a digest."""
    source = skopeo_source(text if text.startswith(REGISTRY_SCHEMES) else f"{REGISTRY_SCHEMES[0]}{text}")
    if source.name is None or source.name.digest is not None:
        raise ImageError(f'"{text}" is no name to push to: expected [HOST[:PORT]/]NAME[:TAG]')
    return source


class Skopeo:
    """
    skopeo(1) for one image for a processor; StoreError if skopeo is missing, or fails.

    `authfile` is the content of a file of credentials, containers-auth.json(5): empty for no credentials, None for the
    credentials that skopeo finds by default. skopeo gets the content by a descriptor, so that no disk and no command
    line has credentials. With `obeys_policy` skopeo refuses an image without the signatures that the machine's policy
    asks for, containers-policy.json(5). A registry that sends nothing for `patience_seconds` is given up: skopeo would
    wait for ever.
    """

    def __init__(
        self,
        source: SkopeoSource,
        processor: Processor,
        progress: Progress,
        *,
        verify_tls: bool,
        authfile: bytes | None = None,
        obeys_policy: bool = True,
        patience_seconds: float = 300,
        action: str = "fetch",
    ) -> None:
        self._source = source
        self._processor = processor
        self._progress = progress
        self._verify_tls = verify_tls
        self._authfile = authfile
        self._obeys_policy = obeys_policy
        self._patience_seconds = patience_seconds if source.is_remote else None
        self._failed = f'cannot {action} "{source.wanted}"'
        self._action = action

    def read_manifest(self) -> RawManifest:
        """Return the facts in the manifest; in an index, of the image for the processor."""
        source, wanted, digest = self._source, self._source.wanted, None
        for _ in range(_NESTING_LIMIT):
            document = self._inspect(wanted)
            if source.is_remote:
                own = f"sha256:{hashlib.sha256(document).hexdigest()}"
                digest = digest or own
                wanted = source.at(own)
            entry = entry_for(self._processor, document, wanted)
            if entry is None:
                configuration = configuration_of(document, wanted)
                return RawManifest(wanted=wanted, digest=digest, configuration=configuration, document=document)
            if not source.is_remote:
                break
            wanted = source.at(entry)
        return RawManifest(wanted=wanted, digest=digest)

    def read_configuration(self, wanted: str) -> bytes:
        """Return the configuration of an image, byte by byte."""
        return self._inspect(wanted, "--config")

    def copy(self, wanted: str, layout: Path) -> None:
        """Copy an image for the processor into an OCI layout, without present blobs; reports lines and bytes."""
        # By default skopeo would compress uncompressed layers of other stores.
        # A layout of OCI has no place for signatures.
        options = ["--dest-oci-accept-uncompressed-layers", "--remove-signatures"]
        options += [] if self._obeys_policy else ["--insecure-policy"]
        options += [] if self._verify_tls else ["--src-tls-verify=false"]
        if self._processor != this_processor():
            # For an index in another store skopeo makes the choice.
            options += [f"--override-arch={self._processor.architecture}"]
            options += [f"--override-variant={variant}" for variant in self._processor.variants[:1] if variant]
        begin_bytes = _size_bytes(layout)
        self._copy(
            ["copy", wanted, f"oci:{layout}", *options], "--src-no-creds", lambda _: _size_bytes(layout) - begin_bytes
        )

    def push(self, layout: Path, digest_file: Path, *, as_it_is: bool) -> str:
        """
        Copy the only image of an OCI layout to the source's name, and return the manifest's digest there.

        Unless the image is to arrive `as_it_is`, skopeo compresses plain layers. Reports lines and bytes.
        """
        # A policy is about images that come.
        options = ["--insecure-policy", f"--digestfile={digest_file}", *(["--preserve-digests"] if as_it_is else [])]
        options += [] if self._verify_tls else ["--dest-tls-verify=false"]
        self._copy(["copy", f"oci:{layout}", self._source.wanted, *options], "--dest-no-creds", _written_bytes)
        return digest_file.read_text().strip()

    def _copy(self, words: Sequence[str], no_credentials: str, count: Callable[[int], int]) -> None:
        """Run `skopeo copy` to the end; `count` returns the bytes so far of the process."""
        output, seen_bytes = b"", 0
        patience = _Patience(self._patience_seconds)
        with self._run(words, no_credentials, subprocess.STDOUT) as process:
            assert process.stdout is not None
            while True:
                is_said = bool(wait_readable([process.stdout.fileno()], _LOOK_SECONDS))
                if is_said:
                    data = os.read(process.stdout.fileno(), _OUTPUT_BYTES)
                    if not data:
                        break
                    output = (output + data)[-_OUTPUT_BYTES:]
                size_bytes = count(process.pid)
                if is_said or size_bytes != seen_bytes:
                    seen_bytes = size_bytes
                    patience.renew()
                    line = _last_line(output)
                    # The line of a failure becomes the error.
                    if _FATAL not in line:
                        self._progress(f"skopeo: {line[:_SHOWN_LIMIT]}", max(seen_bytes, 0), None)
                elif patience.is_over:
                    raise self._stalled()
        if process.returncode != 0:
            raise self._failure(output)

    def _inspect(self, wanted: str, *words: str) -> bytes:
        options = [*words, "--raw", *([] if self._verify_tls else ["--tls-verify=false"])]
        with self._run(["inspect", wanted, *options], "--no-creds", subprocess.PIPE) as process:
            try:
                document, errors = process.communicate(timeout=self._patience_seconds)
            except subprocess.TimeoutExpired:
                raise self._stalled() from None
        if process.returncode != 0:
            raise self._failure(errors)
        return document

    @contextmanager
    def _run(self, words: Sequence[str], no_credentials: str, errors: int) -> Iterator[subprocess.Popen[bytes]]:
        """Run skopeo for the length of a with block; a failure of the block ends skopeo."""
        program = shutil.which("skopeo")
        if program is None:
            raise (
                _missing(self._source.wanted)
                if self._action == "fetch"
                else StoreError(
                    f"{self._failed}: skopeo is not installed: install it, or take the image to a machine that has it:"
                    " minit image export --format=oci-archive IMAGE FILE"
                )
            )
        with _authentication(self._authfile, no_credentials) as (options, descriptors):
            try:
                process = subprocess.Popen(
                    [program, *words, *options],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    pass_fds=descriptors,
                    preexec_fn=ending_with_caller(),
                )
            except OSError as error:
                raise StoreError(f"{self._failed}: {describe(error)}") from error
            with process:
                try:
                    yield process
                except BaseException:
                    process.kill()
                    raise

    def _stalled(self) -> StoreError:
        moved = "came" if self._action == "fetch" else "went"
        return StoreError(f"{self._failed}: nothing {moved} for {self._patience_seconds:g} seconds")

    def _failure(self, output: bytes) -> StoreError:
        last = _last_line(output)
        message = _MESSAGE.search(last)
        reason = message[1].replace('\\"', '"') if message else last
        remedy = _WITHOUT_TLS if any(word in last for word in _WORDS_OF_TLS) else ""
        if any(word in last for word in _WORDS_OF_POLICY):
            remedy = _remedy_of_policy(reason, self._source)
        return StoreError(f"{self._failed}: skopeo: {reason[:_SHOWN_LIMIT] or 'it failed'}{remedy}")


def _remedy_of_policy(reason: str, source: SkopeoSource) -> str:
    """Return the rule of the policy that refused an image, and the ways out."""
    path = policy_file()
    words = requirements_for(source.wanted, path) if source.is_remote else ()
    rule = f"the rule of {path} is {', '.join(words)}" if words else f"{path} has the rule"
    ways = "".join(way for word, way in _REMEDIES_OF_POLICY.items() if word in reason)
    ways += "change the rule (containers-policy.json(5)), or fetch the image unverified with --insecure-options=image"
    return f": {rule}: {ways}"


def _last_line(output: bytes) -> str:
    return output.decode("utf-8", "replace").strip().rpartition("\n")[2].strip()


class _Patience:
    """A time limit since the last renewal; without seconds there is no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self.renew()

    def renew(self) -> None:
        """Start the time again."""
        self._begin = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Tell whether the time is over."""
        return self._seconds is not None and time.monotonic() - self._begin >= self._seconds


def _written_bytes(pid: int) -> int:
    """Return how many bytes a process has written, to files and to the network. proc_pid_io(5)"""
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/io").read_text().splitlines():
            name, _, number = line.partition(":")
            if name == "wchar":
                return int(number)
    return 0


def _size_bytes(directory: Path) -> int:
    """Return the sum of all sizes in a directory in which another process writes."""
    total = 0
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.lstat().st_size
    return total


@contextmanager
def _authentication(authfile: bytes | None, no_credentials: str) -> Iterator[tuple[list[str], tuple[int, ...]]]:
    """Yield skopeo's options for the credentials, and the descriptors that the options name."""
    if not authfile:
        yield ([] if authfile is None else [no_credentials]), ()
        return
    with open(os.memfd_create("authfile"), "wb", buffering=0) as file:
        file.write(authfile)
        yield [f"--authfile=/dev/fd/{file.fileno()}"], (file.fileno(),)


def _missing(wanted: str) -> StoreError:
    archive = re.sub(r"[^A-Za-z0-9._-]", "-", wanted.rpartition("/")[2]) + ".tar"
    name = wanted.removeprefix("docker://")
    named = f"{archive}:{name}" if name != wanted and "@" not in name else archive
    return StoreError(
        f'cannot fetch "{wanted}": skopeo is not installed: install it, or on a machine that has it:'
        f" skopeo copy {wanted} oci-archive:{named}, and here: minit fetch oci-archive:{archive}"
    )
