"""Requests to the service of pods. Pure."""

from __future__ import annotations

from pathlib import Path

from minit.base.idrange import IdRange
from minit.base.processors import Processor
from minit.base.value import Value
from minit.stage0.images.storedimage import PullPolicy
from minit.stage0.pods.appsection import AppOverrides, Pairs, PodSettings
from minit.stage0.stage1.entrypoints import RunOptions


class Stage1Request(Value):
    """A stage1 image: a file's, or the store's by name or id; with neither minit's own."""

    path: str | None = None
    reference: str | None = None


class AppRequest(Value):
    """An app: the image, and the settings beside the image's."""

    reference: str
    """A file, a source of skopeo's, or an image of the store by name or id."""
    overrides: AppOverrides = AppOverrides()
    pull_policy: PullPolicy = PullPolicy.NEW
    processor: Processor | None = None
    """None for that of this machine."""


class PodRequest(PodSettings):
    """A new pod: of images, of a manifest, or without apps if apps are added while the pod runs."""

    apps: tuple[AppRequest, ...] = ()
    manifest: Path | None = None
    """A pod manifest of the caller's, which excludes all that a manifest can say."""
    stage1: Stage1Request = Stage1Request()
    name: str | None = None
    wants_overlay: bool = True
    private_users: IdRange | bool = False


class StartRequest(Value):
    """The way to run a prepared pod."""

    options: RunOptions
    """As `options_for` returns them, so that a wrong name is told before there is a pod."""
    is_detached: bool = False
    """The pod is run by a process of its own."""
    is_removed: bool = False
    """The pod is removed when it ends."""
    waits_for_checks: bool = True
    """The pod in the background is up when all apps are ready; otherwise when all programs are executed."""


class SandboxRequest(Value):
    """A pod without apps, to run in the background."""

    pod: PodRequest
    options: RunOptions
    uuid_file: Path
    """The file that gets the UUID as soon as it is known."""


class AddRequest(Value):
    """A new app of a running pod; `environment` is for names without a value in the app's settings."""

    uuid: str
    app: AppRequest
    environment: Pairs = ()


class AppStart(Value):
    """An app to be started."""

    uuid: str
    app: str


class AppStop(Value):
    """An app to be stopped, after the app's grace period unless another is given."""

    uuid: str
    app: str
    grace_seconds: float | None = None


class AppRemoval(Value):
    """An app to be removed."""

    uuid: str
    app: str


class LogReopening(Value):
    """An app whose log files were moved."""

    uuid: str
    app: str


class PodStop(Value):
    """A pod to be stopped, with a wait for the end; `force` kills the pod."""

    uuid: str
    force: bool = False


class PodRelease(Value):
    """A pod to be killed if running, whose networks and leases are given back."""

    uuid: str


class PodRemoval(Value):
    """A pod to be removed, and stopped first if running."""

    uuid: str


class ImagePull(Value):
    """An image of a registry to be fetched and unpacked; `credentials` are containers-auth.json(5), none if empty."""

    reference: str
    credentials: bytes


class ImageRemoval(Value):
    """Images to be removed, with the trees of images that are gone and that no pod refers to."""

    ids: tuple[str, ...]
