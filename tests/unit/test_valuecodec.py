"""Values as JSON: what is encoded is decoded as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import ManifestError
from minit.base.idrange import IdRange
from minit.base.valuecodec import ValueCodec
from minit.manifest.annotations import Annotation
from minit.manifest.app import Isolator, MountPoint
from minit.manifest.pod import Mount, Volume
from minit.pods.hand import CODEC, HandRequest
from minit.pods.requests import AddRequest, AppRequest, ImagePull, PodRequest, SandboxRequest, Stage1Request
from minit.stage0.images.storedimage import PullPolicy
from minit.stage0.pods.appsection import AppOverrides
from minit.stage0.stage1.entrypoints import RunOptions

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
PAIRS = st.lists(st.tuples(TEXT, TEXT)).map(tuple)
JSON = st.recursive(st.none() | st.booleans() | TEXT, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner))
OVERRIDES = st.builds(
    AppOverrides,
    exec=st.none() | TEXT,
    arguments=st.lists(TEXT).map(tuple),
    supplementary_gids=st.none() | st.lists(st.integers(0, 9)).map(tuple),
    environment=PAIRS,
    mounts=st.lists(
        st.builds(Mount, volume=TEXT, path=TEXT, app_volume=st.none() | st.builds(Volume, name=TEXT, kind=TEXT))
    ).map(tuple),
    mount_points=st.lists(st.builds(MountPoint, name=TEXT, path=TEXT, read_only=st.booleans())).map(tuple),
    isolators=st.lists(st.builds(Isolator, name=TEXT, value=JSON)).map(tuple),
)
APPS = st.builds(AppRequest, reference=TEXT, overrides=OVERRIDES, pull_policy=st.sampled_from(PullPolicy))
PODS = st.builds(
    PodRequest,
    apps=st.lists(APPS, max_size=2).map(tuple),
    stage1=st.builds(Stage1Request, path=st.none() | TEXT),
    private_users=st.booleans() | st.builds(IdRange, shift=st.integers(1, 9), count=st.integers(1, 9)),
    annotations=PAIRS,
)
REQUESTS = (
    st.builds(AddRequest, uuid=TEXT, app=APPS, environment=PAIRS)
    | st.builds(ImagePull, reference=TEXT, credentials=st.binary())
    | st.builds(SandboxRequest, pod=PODS, options=st.builds(RunOptions, hostname=TEXT), uuid_file=TEXT.map(Path))
)


@given(REQUESTS)
def test_requests_read_back(request: Any) -> None:
    """A request to the service of pods is the same in the process that carries it out."""
    asked = HandRequest(data=Path("/data"), local_config="/etc/rkt", request=request)
    assert CODEC.decode(CODEC.encode(asked), "request") == asked


def test_a_member_of_a_strenum_is_text() -> None:
    """A name of an annotation is the text that a manifest has."""
    overrides = AppOverrides(annotations=((Annotation.HEALTH, "{}"),))
    [(name, _)] = ValueCodec(AppOverrides).decode(ValueCodec(AppOverrides).encode(overrides), "app").annotations
    assert type(name) is str and name == Annotation.HEALTH


@pytest.mark.parametrize(
    "data", [b"{}", b'{"value":["Nobody",{}]}', b'{"a":1,"b":2}', b'{"value":["AppOverrides",{"x":1}]}']
)
def test_what_is_of_another_version(data: bytes) -> None:
    """It is refused, with the place."""
    with pytest.raises(ManifestError, match=r"^app: not one of this version"):
        ValueCodec(AppOverrides).decode(data, "app")
