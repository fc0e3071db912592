"""
The images of the store, the stage1 image that a request means, and the program of this command.

The program is made on the first use of the command. `bin/minit`, installed as `minit`, executes the program, or this
command as `minit-plain` where there is no program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from minit.archives.imagenames import is_source, parse_image_name
from minit.base.errors import ImageError, MinitError, StoreError, describe
from minit.base.processors import Processor
from minit.base.progress import Progress
from minit.base.utctime import utc_text_ns
from minit.image.dump.command import build_command, is_current
from minit.image.dump.program import obstacle
from minit.image.interpreter import require_all
from minit.image.stage1 import (
    SHIPPED,
    build_stage1,
    shipped_fingerprint,
    stage1_facts,
    stage1_fingerprint,
    stage1_sources,
)
from minit.podfiles.usersdirectory import is_of_user, program_directory
from minit.pods.caller import INSECURE_IMAGES, Caller
from minit.pods.requests import Stage1Request
from minit.stage0.files.durable import create_file, make_directory, move_into_place, sync_file
from minit.stage0.garbage.storegc import collect_trees
from minit.stage0.images.defaultstage1 import default_stage1, known_stage1
from minit.stage0.images.extract import export_image
from minit.stage0.images.fetching import resolve_image
from minit.stage0.images.knownfiles import result_of_sources
from minit.stage0.images.making import configuration_document
from minit.stage0.images.registry import registry_target
from minit.stage0.images.sending import full_name, outgoing, push_image, write_image
from minit.stage0.images.signatures import Trust
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import PullPolicy, StoredImage
from minit.stage0.images.treestore import TreeStore
from minit.stage0.images.trustedkeys import KeyPlaces

_PLAIN = "-plain"
_NOBODY = 65534  # user_namespaces(7), the id of all that are not mapped


def key_places(caller: Caller) -> KeyPlaces:
    """Return the directories with the caller's trusted keys."""
    return KeyPlaces(local=Path(caller.local_config), system=Path(caller.system_config))


def trust_of(caller: Caller) -> Trust:
    """Return the rule for the images that a caller imports."""
    return Trust(places=key_places(caller), is_enforced=INSECURE_IMAGES not in caller.insecure)


def choose_stage1(caller: Caller, store: Store, request: Stage1Request) -> Callable[[Progress], StoredImage]:
    """
    Return a function that puts the image into the store, if missing, and returns the image.

    ImageError at once if it has to be built and something is missing for that: so no other image is imported in vain.
    """
    path, reference = request.path, request.reference
    if path is not None:
        return lambda progress: store.import_file(Path(path), progress, again=False, trust=trust_of(caller))
    if reference is not None:
        return lambda progress: store.find(reference)
    fingerprint = shipped_fingerprint()
    if fingerprint is not None:
        return partial(_own_stage1, caller, store, fingerprint, lambda _scratch, _progress: SHIPPED)
    record = caller.data / "minit/stage1-sources"
    fingerprint = result_of_sources(record, stage1_facts(), stage1_sources, stage1_fingerprint)
    if known_stage1(caller.data, store, fingerprint) is None:
        require_all()
    return partial(_own_stage1, caller, store, fingerprint, partial(_build, caller))


def _own_stage1(
    caller: Caller,
    store: Store,
    fingerprint: str,
    provide: Callable[[Path, Progress], Path],
    progress: Progress,
) -> StoredImage:
    image = default_stage1(caller.data, store, fingerprint, provide, progress)
    renew_program(fingerprint, progress)
    return image


def _build(caller: Caller, scratch: Path, progress: Progress) -> Path:
    image = scratch / "stage1.aci"
    warning = build_stage1(
        image, lambda step, done, total: progress(f"building stage1 (first use): {step}", done, total)
    )
    if warning is not None:
        caller.note(warning)
    return image


def renew_program(fingerprint: str, progress: Progress) -> None:
    """
    Make the program of the running command, where the command was not started from a current program.

    A failure to make the program is no failure of the command, and not repeated before there is another `fingerprint`.
    """
    command = sys.argv[0]
    # The interpreter of a dump has this module built in.
    if "_syscalls" in sys.builtin_module_names or os.geteuid() != 0 or not command.endswith(_PLAIN):
        return
    # Below the directory every command has the program of its own path.
    program = Path(f"{program_directory()}{os.path.abspath(command).removesuffix(_PLAIN)}")
    if obstacle() is not None or _has_failed(program, fingerprint) or is_current(program):
        return
    with suppress(MinitError, OSError):
        make_directory(program.parent, 0o755)
        if _is_roots_alone(program.parent):
            progress("making the command quicker (first use)", 0, None)
            _make(program, fingerprint)


def _make(program: Path, fingerprint: str) -> None:
    with TemporaryDirectory(dir=program.parent) as scratch:
        new, failure = Path(scratch, "program"), Path(scratch, "failure")
        try:
            build_command(new)
            new.chmod(0o755)
            sync_file(new)
        except (MinitError, OSError):
            create_file(failure, fingerprint.encode(), 0o644)
            move_into_place(failure, program)
        else:
            move_into_place(new, program)


def _has_failed(program: Path, fingerprint: str) -> bool:
    try:
        with open(program, "rb") as file:
            return file.read(len(fingerprint) + 1) == fingerprint.encode()
    except OSError:
        return False


def _is_roots_alone(directory: Path) -> bool:
    """Tell whether nobody else can write to the path, or replace the path."""
    states = [path.stat() for path in (directory, *directory.parents)]
    # Directories of the machine's root are of nobody in a user's namespace.
    owners = (0, _NOBODY) if is_of_user() else (0,)
    return all(state.st_uid in owners and not state.st_mode & 0o022 for state in states)


def means_image(data: Path, word: str) -> bool:
    """
    Tell whether a word behind an image of a command line means another image, and is no argument.

    A word means an image if it names an ACI, begins with a transport or a registry, or names an image of the store in
    `data`.
    """
    first, slash, _ = word.partition("/")
    has_registry = bool(slash) and first.strip(".") != "" and (not {*".:"}.isdisjoint(first) or first == "localhost")
    if is_source(word) or word.endswith(".aci") or word.startswith("file://") or has_registry:
        return True
    if word.startswith(("/", "./", "../")) or not data.is_dir():
        return False
    try:
        with Store(data) as store:
            store.find(word)
    except (MinitError, OSError):
        return False
    return True


def fetch(
    caller: Caller,
    store: Store,
    reference: str,
    progress: Progress,
    *,
    policy: PullPolicy = PullPolicy.UPDATE,
    processor: Processor | None = None,
    authfile: bytes | None = None,
    signature: Path | None = None,
) -> str:
    """Return the id of the image of a reference, in the store and unpacked; options as in resolve_image."""
    image = resolve_image(
        store,
        reference,
        progress,
        policy,
        processor=processor,
        verify_tls=caller.verifies_tls,
        authfile=authfile,
        trust=trust_of(caller),
        signature=signature,
    )
    TreeStore(caller.data, store).render(image.id, progress)
    return image.id


class ImageFormat(StrEnum):
    """The formats of images that leave, in skopeo's words but for the first."""

    ACI = "aci"
    OCI_ARCHIVE = "oci-archive"
    OCI = "oci"
    DOCKER_ARCHIVE = "docker-archive"


def export_stored(
    caller: Caller,
    store: Store,
    reference: str,
    image_format: ImageFormat,
    output: Path,
    progress: Progress,
    *,
    overwrite: bool,
) -> None:
    """Write the image of a reference, in the store, to a file or a directory; the caller is told what is lost."""
    image = store.find(reference)
    if image_format is ImageFormat.ACI:
        export_image(store, image.id, output, overwrite=overwrite, progress=progress)
        return
    with outgoing(store, image, full_name(image, reference), caller.note, progress) as sent:
        write_image(sent, image_format, output, overwrite=overwrite, progress=progress)


def push(
    caller: Caller, store: Store, reference: str, target: str | None, progress: Progress, authfile: bytes | None
) -> tuple[str, str]:
    """
    Bring the image of a reference, in the store, to a registry, by default by the own name; return name and digest.

    ImageError for an impossible name, StoreError if skopeo is missing or fails.
    """
    image = store.find(reference)
    name = full_name(image, reference)
    if target is None and not name:
        raise ImageError(f'image "{image.own_name}" has no name in a registry: give one: [HOST[:PORT]/]NAME[:TAG]')
    source = registry_target(target or name)
    with outgoing(store, image, "", caller.note, progress) as sent:
        digest = push_image(store, sent, source, progress, verify_tls=caller.verifies_tls, authfile=authfile)
    return source.wanted.removeprefix("docker://"), digest


def tag(store: Store, reference: str, names: Sequence[str]) -> None:
    """Give the image of a reference more names, all of them or none; ImageError for an impossible name."""
    image = store.find(reference)
    for name in [parse_image_name(name) for name in names]:
        store.tag(image.id, name)


def digests(image: StoredImage) -> dict[str, object]:
    """Return the digests of an image's configuration, and of its manifests in registries."""
    known = image.digests
    return {
        "configuration": None if known is None else known.configuration,
        "manifests": [] if known is None else list(known.manifests),
    }


def inspect(store: Store, reference: str) -> dict[str, object]:
    """Return what is known of the image of a reference, as values of JSON; sizes are in bytes."""
    image = store.find(reference)
    with store.layers.kept():
        layers = [store.layers.get(diff_id) for diff_id in image.diff_ids]
        described = [
            {
                "diffID": layer.diff_id,
                "digests": list(layer.packed()),
                "size": layer.tar_bytes,
                "kept": layer.has_bytes,
            }
            for layer in layers
        ]
    return {
        "id": image.id,
        "names": list(image.all_names),
        "digests": digests(image),
        "importTime": utc_text_ns(image.import_time_ns),
        "size": image.size_bytes,
        "layers": described,
        "configuration": configuration_document(store, image),
    }


def remove_all(caller: Caller, store: Store, ids: tuple[str, ...]) -> None:
    """Remove images and the unpacked trees of images that are gone; StoreError with the last failure at the end."""
    failure: MinitError | None = None
    for image in ids:
        try:
            store.remove(store.find(image).id)
        except MinitError as error:
            failure = error
    collect_trees(caller.data, TreeStore(caller.data, store), None, caller.note, gone_only=True)
    if failure is not None:
        raise StoreError(f"failed to remove one or more images: {describe(failure)}") from failure
