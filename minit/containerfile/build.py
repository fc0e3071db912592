"""
Builds the image of a Containerfile: each step is looked up among the steps done before, or carried out.

The key of a step is that of the step before with all that this step depends on: the command with variables, user and
network, or the content of the files to copy. A step of the same key gave a layer once, and the layer is taken again.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO, NoReturn

from minit.archives.imagenames import ImageName, parse_image_name
from minit.archives.layered import Layer
from minit.archives.unpackedlayer import owners_with
from minit.base import jsontext
from minit.base.errors import ImageError, PodError, StoreError, describe
from minit.base.progress import Progress
from minit.base.value import Value, replace
from minit.containerfile import parse, running
from minit.containerfile.copying import (
    Origin,
    Source,
    copy,
    destination,
    digest_of,
    find_sources,
    lay_out,
    resolve_owner,
)
from minit.containerfile.ignore import MOST_BYTES as MOST_IGNORE_BYTES
from minit.containerfile.ignore import NAMES as IGNORE_NAMES
from minit.containerfile.ignore import Ignored, parse_ignored
from minit.containerfile.mounts import BIND
from minit.containerfile.plan import SCRATCH, Plan, Stage, at, origin_of, plan
from minit.containerfile.running import Site
from minit.containerfile.state import DEFAULT_PATH, HOST, Action, Copy, Pairs, Run, State, advance
from minit.linux import syscalls
from minit.linux.idmapping import read_held_ids
from minit.pods.caller import Caller
from minit.pods.ending import cleanup_of
from minit.pods.images import choose_stage1, trust_of
from minit.pods.requests import Stage1Request
from minit.pods.running import options_for
from minit.stage0.files.temporary import scratch_directory
from minit.stage0.images.fetching import resolve_image
from minit.stage0.images.making import configuration_document, make_image
from minit.stage0.images.stepcache import NOTHING
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import PullPolicy, StoredImage
from minit.stage0.images.treestore import TreeStore
from minit.stage0.layeredroot import LayeredRoot
from minit.stage0.pods.nameservice import MODE_HOST, NameService
from minit.stage0.pods.overlay import overlay_obstacle
from minit.stage0.stage1.entrypoints import RunOptions

FILES = ("Containerfile", "Dockerfile")
"""Names of the file in a context, the first that exists."""

STANDARD_INPUT = Path("-")

_CONTAINERFILE = "Containerfile"

_IN_ROOT = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
_NAME_DIGITS = 12
# Another number whenever a step gives other files than before: no step of the cache is taken then.
_RULES = "2"


class ImageBuild(Value):
    """A request for an image."""

    context: Path
    file: Path | None = None
    """None for the Containerfile or Dockerfile of the context."""
    text: str | None = None
    """The Containerfile itself, in the place of a file."""
    tags: tuple[str, ...] = ()
    arguments: Pairs = ()
    target: str | None = None
    labels: Pairs = ()
    networks: tuple[str, ...] = ()
    """Networks of RUN, as RunOptions has them."""
    uses_cache: bool = True
    pull_policy: PullPolicy = PullPolicy.NEW
    is_quiet: bool = False
    """Whether the output of RUN is told only after a failure."""
    stage1: Stage1Request = Stage1Request()


def build(caller: Caller, store: Store, request: ImageBuild, progress: Progress) -> str:
    """
    Return the id of the image of a Containerfile, in the store with all tags.

    MinitError, with file and line, if the file is wrong or not supported, which is told before anything is built, or if
    a step fails. Then steps stay in the cache, and nothing else.
    """
    names = [parse_image_name(tag) for tag in request.tags]
    text, source = _read_file(request)
    planned = plan(parse.parse(text, source), source, request.arguments, request.target)
    for name in planned.unused:
        caller.note(f'warning: no ARG of {source} declares the argument "{name}"')
    obstacle = overlay_obstacle(caller.data)
    if obstacle is not None:
        raise PodError(f"cannot build images without overlayfs: {obstacle}")
    _refuse_host_network(planned, request.networks)
    ignored = _read_ignored(request)
    with ExitStack() as stack:
        context = _open_context(request.context)
        stack.callback(os.close, context)
        stack.enter_context(store.layers.kept())
        scratch = stack.enter_context(scratch_directory(store.temporary))
        site = _site(caller, store, request, progress, stack)
        origin = Origin(root=context, label=f"the context {request.context}", ignored=ignored)
        building = _Build(site, request, planned, origin, scratch)
        return building.build(names)


def _refuse_host_network(planned: Plan, networks: tuple[str, ...]) -> None:
    """Raise ImageError if a file asks for the host's network, which only the caller can give."""
    if HOST in networks:
        return
    for stage in planned.stages:
        for instruction in stage.instructions:
            with at(planned.source, instruction):
                if instruction.name == "RUN" and ("network", HOST) in instruction.flags:
                    raise ImageError("--network=host: the caller has to give the host's network, too: --net=host")


def _site(caller: Caller, store: Store, request: ImageBuild, progress: Progress, stack: ExitStack) -> Site:
    names = NameService() if "none" in request.networks else NameService(resolv=MODE_HOST)
    options = options_for(caller, RunOptions(networks=request.networks, name_service=names))
    put_stage1 = choose_stage1(caller, store, request.stage1)
    output: BinaryIO | None = stack.enter_context(store.temporary_file()) if request.is_quiet else None
    return Site(
        caller=caller,
        store=store,
        trees=TreeStore(caller.data, store),
        stage1=put_stage1(progress),
        cleanup=stack.enter_context(cleanup_of(caller, store)),
        options=options,
        progress=progress,
        output=output,
    )


_Input = tuple[Origin, Sequence[Source]]
"""Where files of a step come from."""


class _Built(Value):
    """An image on the way: the base, the digests of the layers above, the state, and the key of the last step."""

    base: StoredImage
    layers: tuple[str, ...]
    state: State
    key: str
    history: tuple[tuple[str, bool], ...] = ()
    """Instructions, and whether each has made a layer."""


class _Build:
    """One build: the stages one after the other."""

    def __init__(self, site: Site, request: ImageBuild, planned: Plan, context: Origin, scratch: Path) -> None:
        self._site = site
        self._request = request
        self._plan = planned
        self._context = context
        self._scratch = scratch
        self._built: dict[int, _Built] = {}
        self._roots: dict[str, LayeredRoot] = {}
        self._step = 0

    def build(self, names: Sequence[ImageName]) -> str:
        """Build all stages, and return the id of the last one's image."""
        for stage in self._plan.stages:
            self._built[stage.number] = self._build_stage(stage)
        last = self._built[self._plan.stages[-1].number]
        labels = dict(self._request.labels)
        if labels:
            last = replace(last, state=last.state.joined("Labels", labels))
        return self._commit(last, names)

    def _build_stage(self, stage: Stage) -> _Built:
        self._tell(stage.opening.text)
        with at(self._plan.source, stage.opening):
            built = self._begin(stage)
        triggers = built.state.config.get("OnBuild")
        if isinstance(triggers, list) and triggers:
            built = replace(built, state=built.state.changed(OnBuild=None))
            text = "\n".join(str(trigger) for trigger in triggers)
            source = f"ONBUILD of {stage.base}"
            for instruction in parse.parse(text, source):
                with at(source, instruction):
                    built = self._advance(stage, built, instruction)
        for instruction in stage.instructions:
            self._tell(instruction.text)
            with at(self._plan.source, instruction):
                built = self._advance(stage, built, instruction)
        return built

    def _tell(self, text: str) -> None:
        self._step += 1
        if not self._request.is_quiet:
            self._site.caller.note(f"STEP {self._step}/{self._plan.steps}: {text}")

    def _begin(self, stage: Stage) -> _Built:
        """Return the state before the first instruction of a stage."""
        if isinstance(stage.base, int):
            below = self._built[stage.base]
            state = State(config=below.state.config, author=below.state.author)
        else:
            base = self._find_base(stage.base)
            document = configuration_document(self._site.store, base)
            config = document.get("config")
            state = State(config=dict(config) if isinstance(config, dict) else {})
            if "PATH" not in state.environment:
                state = state.changed(
                    Env=[f"PATH={DEFAULT_PATH}", *(f"{name}={value}" for name, value in state.environment.items())]
                )
            below = _Built(base=base, layers=(), state=state, key=f"{_rules()} {base.id}")
        state = replace(state, given=self._request.arguments, defaults=self._plan.arguments)
        return replace(below, state=state)

    def _find_base(self, name: str) -> StoredImage:
        store, progress = self._site.store, self._site.progress
        if name == SCRATCH:
            return make_image(store, parse_image_name("localhost/scratch"), None, (), {"config": {}}, progress)
        caller, policy = self._site.caller, self._request.pull_policy
        find = partial(resolve_image, store, verify_tls=caller.verifies_tls, trust=trust_of(caller))
        if policy is not PullPolicy.UPDATE:
            try:
                return find(name, progress, policy)
            except StoreError:
                if policy is PullPolicy.NEVER:
                    raise
        return find(f"docker://{name}", progress, policy)

    def _advance(self, stage: Stage, built: _Built, instruction: parse.Instruction) -> _Built:
        state, action = advance(built.state, instruction)
        layer: str | None = None
        if action is not None:
            built, layer = self._act(stage, built, action)
        history = (*built.history, (instruction.text, layer is not None))
        return replace(built, state=state, history=history)

    def _act(self, stage: Stage, built: _Built, action: Action) -> tuple[_Built, str | None]:
        """Return the state with the layer of an action, known or new, and the digest of the layer, if any."""
        store = self._site.store
        with ExitStack() as stack:
            inputs: list[_Input] = []
            key = f"{built.key}\n{action!r}"
            if isinstance(action, Run):
                key += repr(self._site.options.networks)
                for mount in action.mounts:
                    if mount.kind == BIND:
                        origin = self._origin(stage, mount.origin, stack)
                        inputs.append((origin, find_sources(origin, [mount.source])))
            elif isinstance(action, Copy):
                origin = self._origin(stage, action.origin, stack)
                inputs.append((origin, find_sources(origin, action.sources)))
            key += "".join(digest_of(*each) for each in inputs)
            known = store.steps.recall(key) if self._request.uses_cache else None
            if known is not None and (known == NOTHING or store.layers.has(known)):
                if not self._request.is_quiet:
                    self._site.caller.note("--> from the cache")
                layer = None if known == NOTHING else known
            else:
                layer = self._carry_out(built, action, inputs)
                store.steps.remember(key, layer or NOTHING)
        layers = built.layers if layer is None else (*built.layers, layer)
        return replace(built, layers=layers, key=key_digest(key)), layer

    def _carry_out(self, built: _Built, action: Action, inputs: Sequence[_Input]) -> str | None:
        root = self._root(built)
        note = self._site.caller.note
        if isinstance(action, Run):
            with scratch_directory(self._site.store.temporary) as scratch:
                binds = [
                    lay_out(origin, sources[0], Path(tempfile.mkdtemp(dir=scratch)), note) for origin, sources in inputs
                ]
                running.run(self._site, action, built.base, root, f"step-{self._step}", binds)
        else:
            with root.changing() as top:
                if isinstance(action, Copy):
                    copy(action, *inputs[0], top, note)
                else:
                    owner = resolve_owner(top, action.user) if action.user else (0, 0)
                    for path in action.paths:
                        with destination(top, path.strip("/"), owner):
                            pass
        layer = root.spool(self._site.store, note)
        self._roots.pop(_place(built))
        self._roots[_place(replace(built, layers=(*built.layers, *([] if layer is None else [layer.diff_id]))))] = root
        return None if layer is None else layer.diff_id

    def _root(self, built: _Built) -> LayeredRoot:
        """Return a root with the layers of an image on the way, to be read or changed."""
        place = _place(built)
        root = self._roots.get(place)
        if root is None:
            site = self._site
            tree = site.trees.path(site.trees.render(built.base.id, site.progress)) / "rootfs"
            scratch = Path(tempfile.mkdtemp(dir=self._scratch))
            root = LayeredRoot(scratch, tree)
            for diff_id in built.layers:
                root.add(site.store.layers.get(diff_id))
            self._roots[place] = root
        return root

    def _origin(self, stage: Stage, name: str | None, stack: ExitStack) -> Origin:
        if name is None:
            return self._context
        earlier = [other for other in self._plan.stages if other.number < stage.number]
        number = origin_of(name, earlier)
        if number is not None:
            built, label = self._built[number], f"stage {name}"
        else:
            image = self._find_base(name)
            built, label = _Built(base=image, layers=(), state=State(config={}), key=""), f"image {name}"
        return Origin(root=stack.enter_context(self._root(built).reading()), label=label, is_image=True)

    def _commit(self, built: _Built, names: Sequence[ImageName]) -> str:
        """Return the id of the image, made unless the store has an image of the same steps and configuration."""
        store = self._site.store
        config = {"config": built.state.config, **({"author": built.state.author} if built.state.author else {})}
        key = f"{built.key}\nimage {jsontext.dump(config)!r}"
        known = store.steps.recall(key) if self._request.uses_cache else None
        if known is not None and store.has(known):
            image = store.get(known)
        else:
            made_up = parse_image_name(f"localhost/build:{key_digest(key)[:_NAME_DIGITS]}")
            document = configuration_document(store, built.base)
            document |= {**config, "created": _now(), "history": _history(document, built)}
            layers = [_known_layer(diff_id) for diff_id in built.layers]
            image = make_image(store, names[0] if names else made_up, built.base, layers, document, self._site.progress)
            store.steps.remember(key, image.id)
        for name in names:
            store.tag(image.id, name)
        return image.id


def _rules() -> str:
    """Return the beginning of the keys of all steps, by which layers with other owners are others."""
    return f"{_RULES} {owners_with(read_held_ids())}"


def key_digest(key: str) -> str:
    """Return a short form of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def _place(built: _Built) -> str:
    return "\n".join((built.base.id, *built.layers))


def _known_layer(diff_id: str) -> Layer:
    """Return a layer of the store, which is not read again."""

    def refuse() -> NoReturn:
        raise StoreError(f"layer {diff_id} is gone from the store")

    return Layer(name=f"layer {diff_id}", open=refuse, size_bytes=0, diff_id=diff_id)


def _history(document: dict[str, object], built: _Built) -> list[dict[str, object]]:
    """Return the history of the base, or an entry for each layer of the base without any, and that of the build."""
    old = document.get("history")
    entries = [entry for entry in old if isinstance(entry, dict)] if isinstance(old, list) else []
    layers = max(1, len(built.base.diff_ids))
    if sum(not entry.get("empty_layer") for entry in entries) != layers:
        entries = [{"created_by": f"image {built.base.name}"}] * layers
    for text, has_layer in built.history:
        entries.append({"created": _now(), "created_by": text, **({} if has_layer else {"empty_layer": True})})
    return entries


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _read_file(request: ImageBuild) -> tuple[str, str]:
    """Return the text of the Containerfile, and the name for errors."""
    if request.text is not None:
        return request.text, _CONTAINERFILE
    if request.file == STANDARD_INPUT:
        source = "standard input"
        return _text_of(sys.stdin.buffer, source, _CONTAINERFILE, parse.MOST_BYTES), source
    path = request.file or _find_file(request.context)
    return _read(path, _CONTAINERFILE, parse.MOST_BYTES), str(path)


def _find_file(context: Path) -> Path:
    for name in FILES:
        if (context / name).exists():
            return context / name
    raise ImageError(f"{context}: no Containerfile and no Dockerfile there: name the file with --file")


def _read_ignored(request: ImageBuild) -> Ignored:
    """Return the patterns of the ignore file: the Containerfile's own, or the context's."""
    path = None if request.text is not None or request.file == STANDARD_INPUT else request.file
    path = path or next((request.context / name for name in FILES if (request.context / name).exists()), None)
    places = [request.context / name for name in IGNORE_NAMES]
    if path is not None:
        places[:0] = [path.with_name(f"{path.name}{name}") for name in IGNORE_NAMES]
    for place in places:
        if place.exists():
            return parse_ignored(_read(place, "ignore file", MOST_IGNORE_BYTES), str(place))
    return Ignored()


def _read(path: Path, what: str, limit_bytes: int) -> str:
    """Return the text of a file of a stranger; ImageError for an unreadable or a larger file."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
            return _text_of(file, str(path), what, limit_bytes)
    except OSError as error:
        raise ImageError(f"cannot read the {what} {describe(error)}") from error


def _text_of(file: BinaryIO, source: str, what: str, limit_bytes: int) -> str:
    data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise ImageError(f"{source}: more than {limit_bytes} bytes: no {what}")
    return data.decode("utf-8", "surrogateescape")


def _open_context(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ImageError(f"cannot open the context {describe(error)}: it is a directory") from error
