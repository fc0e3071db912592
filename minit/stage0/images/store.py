"""
The image store: imported ACIs as plain files, looked up by ID or by name.

An image is an uncompressed tar (blob) and a manifest. In the place of the blob an image of layers has a recipe, which
puts the tar together from layers, and images share layers. minit's images are below `$DATA/minit/cas`, since a blob
below rkt's `cas/blob` without a row in rkt's database would be invisible to rkt and never collected; images that rkt
fetched are found and used, but never changed.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO

from minit.archives.aci import MANIFEST_LIMIT_BYTES, copy_image
from minit.archives.imagenames import ImageName, ImageReference, parse_image_reference
from minit.archives.layered import Document
from minit.archives.recipe import BlobFile, OpenBlob, Recipe, assembled_id, read_recipe, write_recipe
from minit.archives.unpackedlayer import UnpackedLayer
from minit.base import jsontext
from minit.base.errors import ImageError, MinitError, StoreError, describe
from minit.base.processors import Processor, this_processor
from minit.base.progress import Progress, silent
from minit.base.value import replace
from minit.manifest.image import Dependency, parse_image_manifest
from minit.podfiles.boundedfile import read_at_most
from minit.stage0.files.durable import disk_errors, make_directory
from minit.stage0.files.locks import drop_key_locks, key_lock, lock_directory
from minit.stage0.files.temporary import collect_leftovers, scratch_directory
from minit.stage0.images.imagefiles import CONTENT, DIRECTORY_MODE, FILE_MODE, KEY, ImageFiles
from minit.stage0.images.knownfiles import KnownFiles
from minit.stage0.images.layerstore import LayerStore
from minit.stage0.images.signatures import Signature, Trust, parse_signature
from minit.stage0.images.stepcache import StepCache
from minit.stage0.images.storedimage import ImageNames, Origin, StoredImage, Tag, choose_named, missing_image, tag_meant

_KEY_LENGTH = len("sha512-") + 64
_IMPORT_AGAIN = "import it again with: minit fetch FILE"
_REFERENCE_ID = re.compile(r"(sha512-)?([0-9a-f]{2,})")


class Store:
    """
    The images below the data directory `data`, which is made when missing.

    A context manager that closes the store. An open store holds a shared lock on `cas`, as every process with rkt's
    store open does, so that rkt does not migrate the store meanwhile.
    """

    def __init__(self, data: Path) -> None:
        self.data = data
        own = data / "minit" / "cas"
        self._own = ImageFiles(own)
        self._rkts = ImageFiles(data / "cas")
        self.temporary = own / "tmp"
        self.layers = LayerStore(own / "layer", self.temporary)
        self.steps = StepCache(own / "steps", self.temporary)
        self._known_files = KnownFiles(own / "files", self.temporary)
        self._image_locks = data / "cas" / "imagelocks"
        self._assembled: set[str] = set()
        with disk_errors(f"open the image store in {data}", data):
            for path in (data, self._rkts.top, self._image_locks):
                make_directory(path, DIRECTORY_MODE)
            self._lock: int | None = lock_directory(self._rkts.top, exclusive=False)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up the lock on the store."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def import_file(
        self,
        path: Path,
        progress: Progress = silent,
        *,
        again: bool = True,
        trust: Trust | None = None,
        signature: Path | None = None,
    ) -> StoredImage:
        """
        Add the ACI in a file, replacing an image with the same content; the latest import wins name look-ups.

        If not `again`, a file that is unchanged since the last import is not read, while the store has the image.
        Reports compressed bytes read. ImageError if the file is no valid image, or has not the signature, in the file
        `signature` or beside the image, that `trust` asks for; nothing is left of a failed import.
        """
        try:
            file = open(path, "rb", buffering=0, opener=_open_at_once)
        except OSError as error:
            raise StoreError(f"open image {describe(error)}") from error
        with file, disk_errors(f"import {path}", self._own.top):
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise StoreError(f"open image {path}: not a regular file")
            known = None if again or signature is not None else self._known(status, trust)
            if known is not None:
                return known
            read_since_ns = time.time_ns()
            verifies = trust is not None and (signature is not None or trust.has_keys)

            def produce(write: Callable[[memoryview], object]) -> tuple[str, bytes, Signature | None]:
                def write_and_report(data: memoryview) -> None:
                    write(data)
                    progress(f"importing {path.name}", image_file.tell(), status.st_size)

                # Only a copy is sure to have the same bytes twice: for the store and for gpgv.
                with self.temporary_file() if verifies else nullcontext(file) as image_file:
                    if verifies:
                        shutil.copyfileobj(file, image_file)
                        image_file.seek(0)
                    image_id, manifest = copy_image(image_file, str(path), write_and_report)
                    signed = None
                    if trust is not None:
                        name = parse_image_manifest(manifest, str(path)).name
                        signed = trust.verify(name, image_file, str(path), signature)
                return image_id, manifest, signed

            image = self.add(f"import {path}", produce)
            self._known_files.remember(os.fstat(file.fileno()), read_since_ns, image.id)
            return image

    def _known(self, status: os.stat_result, trust: Trust | None) -> StoredImage | None:
        """Return the image of a file with this status, as the last import; None if the file must be read."""
        image_id = self._known_files.recall(status)
        if image_id is None or not KEY.fullmatch(image_id):
            return None
        try:
            if self.is_own(image_id):
                if trust is not None and not trust.accepts(self.get(image_id).name, self.signature(image_id)):
                    return None
                self.renew(image_id)
                return self.get(image_id)
        except MinitError:
            pass  # removed, or damaged
        return None

    def add(
        self,
        action: str,
        produce: Callable[[Callable[[memoryview], object]], tuple[str, bytes, Signature | None]],
    ) -> StoredImage:
        """
        Add an image: `produce` hands the uncompressed tar to its argument, and returns ID, manifest and signature.

        A failure leaves nothing. StoreError, with `action`, if the disk is at fault.
        """
        with disk_errors(action, self._own.top), scratch_directory(self.temporary) as scratch:
            self._collect_orphans()
            with open(scratch / "blob", "xb") as blob:
                os.fchmod(blob.fileno(), FILE_MODE)
                image_id, manifest, signature = produce(blob.write)
                blob.flush()
                os.fsync(blob.fileno())
            self._place(scratch, "blob", image_id, manifest, signature=signature)
        return self.get(image_id)

    def add_layered(
        self,
        action: str,
        manifest: bytes,
        layers: Sequence[UnpackedLayer],
        names: Sequence[str],
        origin: Origin,
        unpacked: Container[str] = (),
    ) -> StoredImage:
        """
        Add the image of layers, the lowest first, which the caller keeps; errors call the layers by `names`.

        `unpacked` are the diff_ids of layers that the caller has just unpacked, whose files are not read again.
        A failure leaves nothing. DamagedLayerError if a layer has changed, StoreError if the disk is at fault.
        """
        with disk_errors(action, self._own.top), scratch_directory(self.temporary) as scratch:
            self._collect_orphans()
            with open(scratch / "recipe", "xb") as file:
                os.fchmod(file.fileno(), FILE_MODE)
                write_recipe(manifest, layers, names, file)
                os.fsync(file.fileno())
            image_id = assembled_id(read_recipe(scratch / "recipe"), layers, unpacked)
            self._place(scratch, "recipe", image_id, manifest, origin)
        self._assembled.add(image_id)
        return self.get(image_id)

    def has_assembled(self, image_id: str) -> bool:
        """Tell whether this object has added the image of layers, and so has read all bytes of the image."""
        return image_id in self._assembled

    def _place(
        self,
        scratch: Path,
        kind: str,
        image_id: str,
        manifest: bytes,
        origin: Origin | None = None,
        signature: Signature | None = None,
    ) -> None:
        """Move a blob or a recipe to its place, and the manifest after it."""
        with self._locked(image_id, exclusive=True):
            self._own.put(scratch, kind, image_id)
            if origin is not None:
                self._note_origin(scratch, image_id, origin)
            self._note_signature(scratch, image_id, signature)
            self._own.write(scratch, "imageManifest", image_id, manifest)
            self._renew_name(scratch, image_id)
            for other in CONTENT:
                if other != kind:
                    self._own.remove(other, image_id)

    def _note_signature(self, scratch: Path, image_id: str, signature: Signature | None) -> None:
        if signature is not None:  # else an earlier one is of the same content
            self._own.write(scratch, "signature", image_id, jsontext.dump(signature.document))

    def _note_origin(self, scratch: Path, image_id: str, origin: Origin) -> None:
        self._own.add_digests(scratch, image_id, origin.digests)
        self._own.write(scratch, "configuration", image_id, origin.configuration)
        self._note_signature(scratch, image_id, origin.signature)
        if origin.manifest is not None:
            document = origin.manifest
            self._own.write(scratch, "manifest", image_id, f"{document.media_type}\n".encode() + document.data)

    def registry_manifest(self, image_id: str) -> Document | None:
        """Return the manifest that an image of layers came with, None if the manifest is not known."""
        with disk_errors(f"image {image_id}", self.data):
            media_type, line, data = (self._own.read("manifest", image_id) or b"").partition(b"\n")
        return Document(media_type=media_type.decode("ascii", "replace"), data=data) if line else None

    def configuration(self, image_id: str) -> bytes | None:
        """Return the configuration of an image of layers, None if the configuration is not known."""
        with disk_errors(f"image {image_id}", self.data):
            return self._own.read("configuration", image_id)

    def signature(self, image_id: str) -> Signature | None:
        """Return the signature that was found good when the image was imported; None if none was looked at."""
        with disk_errors(f"image {image_id}", self.data):
            data = self._own.read("signature", image_id)
        return None if data is None else parse_signature(data, f"signature of image {image_id}")

    def renew(self, image_id: str, origin: Origin | None = None) -> None:
        """Make an image that minit imported the last import, and note its latest origin."""
        with disk_errors(f"image {image_id}", self.data), self._locked(image_id, exclusive=True):
            if self.is_own(image_id):
                with scratch_directory(self.temporary) as scratch:
                    if origin is not None:
                        self._note_origin(scratch, image_id, origin)
                    os.utime(self._own.path("imageManifest", image_id))
                    self._renew_name(scratch, image_id)

    def _renew_name(self, scratch: Path, image_id: str) -> None:
        """Give an image its own name again, which somebody may have taken away."""
        self._own.remove("untagged", image_id)
        names = self._own.names(image_id)
        if not names.keeps_own:
            self._own.write(scratch, "names", image_id, replace(names, keeps_own=True).text)

    def tag(self, image_id: str, name: ImageName) -> None:
        """
        Give an image one more name, with a tag; another image of the same processor loses a name that it was given.

        ImageError for a name with a digest. StoreError for an image of rkt's.
        """
        if name.digest is not None or name.tag is None:
            raise ImageError(f'"{name.original}" is no name to give: expected [HOST[:PORT]/]NAME[:TAG]')
        image = self.get(image_id)
        if not self.is_own(image_id):
            raise StoreError(f"image {image_id} was fetched by rkt: its name is rkt's (minit fetch makes it minit's)")
        tag = Tag(name=name.canonical, time_ns=time.time_ns())
        for other in self.list():
            has_name = any(one.name == tag.name for one in other.names.tags)
            if has_name and other.id != image_id and other.manifest.label("arch") == image.manifest.label("arch"):
                self.change_names(other.id, lambda names: names.without(tag.name))
        self.change_names(image_id, lambda names: replace(names, tags=(*names.without(tag.name).tags, tag)))

    def change_names(self, image_id: str, change: Callable[[ImageNames], ImageNames]) -> None:
        """Replace the names of an image by the names that `change` makes of these."""
        with disk_errors(f"name image {image_id}", self.data), self._locked(image_id, exclusive=True):
            if self.is_own(image_id):
                with scratch_directory(self.temporary) as scratch:
                    self._own.write(scratch, "names", image_id, change(self._own.names(image_id)).text)

    def remove_name(self, image_id: str, reference: str) -> str | None:
        """
        Take a name from an image that has another one, and return the name as users see it.

        None if the reference is an ID, or the image has no other name: then the image itself is to be removed.
        """
        image = self.get(image_id)
        match = _REFERENCE_ID.fullmatch(reference)
        if len(image.all_names) < 2 or (match and image_id.startswith(f"sha512-{match[2]}")):
            return None
        tag = tag_meant(image, parse_image_reference(reference))
        if tag is None:
            self.change_names(image_id, lambda names: replace(names, keeps_own=False))
            return image.own_name
        self.change_names(image_id, lambda names: names.without(tag.name))
        return tag.shown

    def untag(self, image_id: str) -> None:
        """Note that an image has no tag for Kubernetes any more, until the image is imported again."""
        with disk_errors(f"untag image {image_id}", self.data), self._locked(image_id, exclusive=True):
            if self.is_own(image_id):
                self._own.touch("untagged", image_id, durably=True)

    def temporary_file(self) -> BinaryIO:
        """Return a new file without a name, open for reading and writing."""
        with disk_errors("make a temporary file", self._own.top):
            make_directory(self.temporary, DIRECTORY_MODE)
            return tempfile.TemporaryFile(dir=self.temporary)

    def get(self, image_id: str) -> StoredImage:
        """Return the image with a complete ID."""
        if not KEY.fullmatch(image_id):
            raise StoreError(f'"{image_id}" is no image ID (expected sha512- and 64 hex digits)')
        home = self._home(image_id)
        path = home.path("imageManifest", image_id)
        with disk_errors(f"image {image_id}", self.data), self._locked(image_id, exclusive=False):
            try:
                with open(path, "rb") as file:
                    manifest_bytes = read_at_most(file, MANIFEST_LIMIT_BYTES + 1)
                    import_time_ns = os.fstat(file.fileno()).st_mtime_ns
            except FileNotFoundError as error:  # removed just now
                raise self._missing(image_id) from error
            recipe = self.recipe(image_id)
            if recipe is None:
                size_bytes = home.path("blob", image_id).stat().st_size + self._own.tree_bytes(image_id)
            else:
                size_bytes = recipe.size_bytes  # of which the tree has the very files
            last_used_ns = max(import_time_ns, self._own.used_ns(image_id))
            digests = self._own.digests(image_id)
            names = self._own.names(image_id)
        return StoredImage(
            id=image_id,
            manifest=parse_image_manifest(manifest_bytes, str(path)),
            manifest_bytes=manifest_bytes,
            size_bytes=size_bytes,
            import_time_ns=import_time_ns,
            last_used_ns=last_used_ns,
            digests=digests,
            diff_ids=() if recipe is None else recipe.layers,
            names=names,
            is_untagged=self._own.path("untagged", image_id).exists(),
        )

    def find(self, reference: str, processor: Processor | None = None) -> StoredImage:
        """
        Return the image a user means: `sha512-DIGITS`, two or more first digits, or any form of the name.

        Of several images of one name the image for `processor` is chosen, or for this machine's. StoreError if there is
        no image, or several IDs begin with the digits.
        """
        match = _REFERENCE_ID.fullmatch(reference)
        candidates: dict[str, StoredImage] = {}
        images: list[StoredImage] = []
        if match:
            prefix = f"sha512-{match[2]}"[:_KEY_LENGTH]
            candidates = {key: self.get(key) for key in self._ids() if key.startswith(prefix)}
            if len(prefix) == _KEY_LENGTH and candidates:
                return candidates[prefix]  # no name goes before a whole ID
        if not match or not match[1]:
            images = self.list()
            named = choose_named(images, parse_image_reference(reference), processor or this_processor())
            if named is not None:
                candidates[named.id] = named
        if not candidates:
            raise missing_image(reference, images, self.data, is_id=match is not None)
        if len(candidates) > 1:
            listing = ", ".join(f"{image.id[:19]} ({image.name})" for _, image in sorted(candidates.items()))
            raise StoreError(f'image "{reference}" is ambiguous: {listing}: give more digits of the ID')
        return candidates.popitem()[1]

    def find_dependency(self, dependency: Dependency, processor: Processor) -> StoredImage | None:
        """Return the image of a dependency: by ID, or as `find` does by the name and all labels."""
        if dependency.image_id is not None:
            image_id = dependency.image_id[:_KEY_LENGTH]
            return self.get(image_id) if image_id in self._ids() else None
        reference = ImageReference(names=(dependency.image_name,), labels=dependency.labels)
        return choose_named(self.list(), reference, processor)

    def list(self, on_error: Callable[[MinitError], None] | None = None) -> list[StoredImage]:
        """Return all images, oldest import first; `on_error` gets the errors of unreadable manifests."""
        images = []
        for image_id in self._ids():
            try:
                images.append(self.get(image_id))
            except MinitError as error:
                if on_error is not None and image_id in self._ids():  # else removed meanwhile
                    on_error(error)
        return sorted(images, key=lambda image: (image.import_time_ns, image.id))

    def remove(self, image_id: str) -> None:
        """Remove an image that minit imported; a rendered tree stays, as pods may use the tree."""
        if not self.is_own(image_id):
            raise StoreError(f"image {image_id} was fetched by rkt: remove it with: rkt image rm {image_id}")
        with disk_errors(f"remove image {image_id}", self.data), self._locked(image_id, exclusive=True):
            self._home(image_id)  # StoreError if another process has removed the image meanwhile
            self._own.remove_all(image_id)
        self.collect_layers()

    def has(self, image_id: str) -> bool:
        """Return whether the store has the image with a complete ID."""
        return self._own.has(image_id) or self._rkts.has(image_id)

    def is_own(self, image_id: str) -> bool:
        """Return whether minit imported the image; StoreError for an unknown image."""
        return self._home(image_id) is self._own

    def verify(self, image_id: str) -> None:
        """Raise StoreError if the image's blob has changed since the import, or has another manifest."""
        image = self.get(image_id)
        with self.open_blob(image_id) as blob, disk_errors(f"verify image {image_id}", self.data):
            try:
                found, manifest = copy_image(blob, str(self.blob_path(image_id)), lambda data: None)
            except ImageError as error:
                raise StoreError(f"image {image_id} is damaged ({error}): {_IMPORT_AGAIN}") from error
        # rkt writes manifests anew, in another form.
        if found != image_id or (self.is_own(image_id) and manifest != image.manifest_bytes):
            raise StoreError(f"image {image_id} is damaged (its blob has the id {found}): {_IMPORT_AGAIN}")

    def mark_used(self, image_id: str) -> None:
        """Note that a pod is prepared from an image now; rkt notes the use of its own images."""
        with disk_errors(f"mark image {image_id}", self.data), self._locked(image_id, exclusive=False):
            if self.is_own(image_id):
                self._own.touch("lastUsed", image_id)

    def blob_path(self, image_id: str) -> Path:
        """Return the path of the image's uncompressed tar; an image of layers has none."""
        return self._home(image_id).path("blob", image_id)

    def open_blob(self, image_id: str) -> OpenBlob:
        """Open the image's uncompressed tar, unbuffered; an open tar stays readable when the image is removed."""
        with disk_errors(f"image {image_id}", self.data), self._locked(image_id, exclusive=False):
            recipe = self.recipe(image_id)
            return BlobFile(self.blob_path(image_id)) if recipe is None else self.layers.assemble(recipe)

    def collect_layers(self) -> None:
        """Remove the layers that no image and no step of a build has."""
        self.layers.collect(self._own.recipes, self.steps.results)

    def recipe(self, image_id: str) -> Recipe | None:
        """Return the recipe of an image, None for an image with a blob."""
        path = self._own.path("recipe", image_id)
        return read_recipe(path) if path.exists() else None

    def record_tree_size(self, image_id: str, size_bytes: int) -> None:
        """Remember how many bytes the rendered tree of the image takes, which is cheaper than walking the tree."""
        with scratch_directory(self.temporary) as scratch:
            self._own.write(scratch, "treeSize", image_id, str(size_bytes).encode())

    def forget_tree_size(self, image_id: str) -> None:
        """Forget the size of a removed tree."""
        if KEY.fullmatch(image_id):
            self._own.remove("treeSize", image_id)

    def collect_leftovers(self) -> None:
        """Remove the traces of killed imports and removals, and of images that are gone."""
        collect_leftovers(self.temporary)
        self._collect_orphans()
        self.collect_layers()
        self._known_files.forget_gone(self.has)
        drop_key_locks(self._image_locks, self.has)

    def _collect_orphans(self) -> None:
        """Remove the files of images without manifest, whose import or removal was killed half-way."""
        for image_id in list(self._own.orphans()):
            try:
                with key_lock(self._image_locks, image_id, exclusive=True, blocking=False):
                    if not self._own.has(image_id):
                        self._own.remove_all(image_id)
            except BlockingIOError:
                continue  # another process is importing the image

    def _ids(self) -> set[str]:
        return self._own.ids() | self._rkts.ids()

    def _home(self, image_id: str) -> ImageFiles:
        """Return the store that has the image, our own if both do."""
        for files in (self._own, self._rkts):
            if files.has(image_id):
                return files
        raise self._missing(image_id)

    def _missing(self, image_id: str) -> StoreError:
        return StoreError(f"image {image_id} is not in the store {self.data}: import it with: minit fetch FILE")

    def _locked(self, image_id: str, *, exclusive: bool) -> AbstractContextManager[int]:
        return key_lock(self._image_locks, image_id, exclusive=exclusive)


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # opening a fifo would wait
