"""--volume and --mount."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.cli.flags.volumeflags import check_volumes, parse_mount, parse_mounted_volume, parse_storage, parse_volume
from minit.cli.flagwords import FlagError
from minit.manifest.app import MAX_ID
from minit.manifest.pod import Mount, Volume
from minit.stage0.volumes import NAME_FORM

NAMES = st.from_regex(r"[a-z0-9]+(-[a-z0-9]+)*", fullmatch=True)
VALUES = st.text(st.characters(exclude_characters=",\0", exclude_categories=["Cs"]), min_size=1)
FLAGS = st.none() | st.booleans()

HOST_VOLUMES = st.builds(
    Volume,
    name=NAMES,
    kind=st.just("host"),
    source=VALUES.map(lambda text: f"/{text}"),
    read_only=FLAGS,
    recursive=FLAGS,
)
EMPTY_VOLUMES = st.builds(
    Volume,
    name=NAMES,
    kind=st.just("empty"),
    read_only=FLAGS,
    recursive=FLAGS,
    mode=st.integers(0, 0o7777).map("{:04o}".format),
    uid=st.integers(0, MAX_ID),
    gid=st.integers(0, MAX_ID),
)


def volume_text(volume: Volume) -> str:
    """Return a volume as a user writes it."""
    fields = {
        "kind": volume.kind,
        "source": volume.source,
        "readOnly": volume.read_only,
        "recursive": volume.recursive,
        "mode": volume.mode,
        "uid": volume.uid,
        "gid": volume.gid,
    }
    words = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in fields.items()]
    return ",".join([volume.name, *(word for word in words if not word.endswith("=None"))])


@given(HOST_VOLUMES | EMPTY_VOLUMES)
def test_volumes_read_back(volume: Volume) -> None:
    """Every volume there can be can be written, with any source that has no comma."""
    if volume.source is not None and volume.source.endswith("=None"):
        return
    assert parse_volume("--volume", volume_text(volume)) == volume


def test_defaults_of_an_empty_volume() -> None:
    """An empty volume says what rkt says when the user does not."""
    expected = Volume(name="tmp", kind="empty", mode="0755", uid=0, gid=0)
    assert parse_volume("--volume", "tmp,kind=empty") == expected


@pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True"])
def test_booleans_are_go_s(text: str) -> None:
    """Booleans are spelt in any way that Go takes."""
    assert parse_volume("--volume", f"a,readOnly={text},kind=host,source=/x").read_only is True


VOLUME_EXPECTED = (
    "--volume: expected NAME,kind=host,source=PATH, NAME,kind=named, NAME,kind=image,source=IMAGE, "
    "NAME,kind=empty or SOURCE:TARGET[:ro],"
    " with a name of lower-case letters, digits and inner dashes"
)


def test_images_and_characters() -> None:
    """An image is a volume that is read-only in any case; a value may have any character, as %2C."""
    assert parse_volume("--volume", "a,kind=image,source=example.com/data:1") == Volume(
        name="a", kind="image", source="example.com/data:1"
    )
    assert parse_volume("--volume", "a,kind=host,source=/x%20%2c%3D+").source == "/x ,=+"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f'{VOLUME_EXPECTED}, got ""'),
        ("/srv:/data", f'{VOLUME_EXPECTED}, got "/srv:/data"'),
        ("kind=host,source=/x", f'{VOLUME_EXPECTED}, got "kind=host,source=/x"'),
        ("a", '--volume a: expected kind=host, kind=named, kind=image or kind=empty, got ""'),
        ("a,kind=tmpfs", '--volume a: expected kind=host, kind=named, kind=image or kind=empty, got "tmpfs"'),
        ("a,kind=host", '--volume a: expected source=PATH with an absolute path, got ""'),
        ("a,kind=host,source=x", '--volume a: expected source=PATH with an absolute path, got "x"'),
        ("a,kind=empty,source=/x", "--volume a: a volume of kind empty has no source"),
        ("a,kind=host,source=/x,mode=0700", "--volume a: a volume of kind host has no mode"),
        ("a,kind=host,source=/x,uid=0", "--volume a: a volume of kind host has no uid"),
        ("a,kind=named,uid=0", "--volume a: a volume of kind named has no uid"),
        ("a,kind=named,source=../b", f'--volume a: expected {NAME_FORM}, or an absolute path, got "../b"'),
        ("a,kind=empty,mode=0788", '--volume a: mode: expected an octal mode like "0755", got "0788"'),
        ("a,kind=empty,mode=10000", '--volume a: mode: expected an octal mode like "0755", got "10000"'),
        ("a,kind=empty,uid=x", '--volume a: uid: expected a number from 0 to 4294967294, got "x"'),
        ("a,kind=empty,gid=-1", '--volume a: gid: expected a number from 0 to 4294967294, got "-1"'),
        ("a,kind=empty,gid=4294967295", '--volume a: gid: expected a number from 0 to 4294967294, got "4294967295"'),
        ("a,kind=empty,readOnly=yes", '--volume a: readOnly: expected true or false, got "yes"'),
        ("a,kind=empty,kind=host", "--volume a: kind is given twice"),
        (
            "a,kind=empty,size=1G",
            "--volume a: expected kind=..., source=..., readOnly=..., recursive=..., mode=..., uid=..., gid=...,"
            ' got "size=1G"',
        ),
    ],
)
def test_bad_volumes(text: str, message: str) -> None:
    """An error in a volume is told with its name and the field."""
    with pytest.raises(FlagError) as caught:
        parse_volume("--volume", text)
    assert str(caught.value) == message


def test_volumes_as_docker_has_them() -> None:
    """A name or a path before a colon is a volume that all apps have at the path behind it; others stay as they are."""
    texts = [
        "Pg_data:/var/lib/pg",
        "Pg_data:/again",
        "/srv/site:/www:ro,z",
        "./x/../y:/y",
        "/scratch",
        "d,kind=named",
        "e,kind=named,source=f.g",
    ]
    volumes, mounts = parse_storage("--volume", texts, "/home/me")
    assert volumes == (
        Volume(name="pg-data", kind="named", source="Pg_data", read_only=False),
        Volume(name="srv-site-ro", kind="host", source="/srv/site", read_only=True),
        Volume(name="home-me-y", kind="host", source="/home/me/y", read_only=False),
        Volume(name="scratch", kind="empty", mode="0755", uid=0, gid=0),
        Volume(name="d", kind="named", source="d"),
        Volume(name="e", kind="named", source="f.g"),
    )
    assert [(mount.volume, mount.path) for mount in mounts] == [
        ("pg-data", "/var/lib/pg"),
        ("pg-data", "/again"),
        ("srv-site-ro", "/www"),
        ("home-me-y", "/y"),
        ("scratch", "/scratch"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data:www", 'expected SOURCE:TARGET[:ro] with an absolute path as TARGET, got "data:www"'),
        ("data:/www:ro:z", 'expected SOURCE:TARGET[:ro] with an absolute path as TARGET, got "data:/www:ro:z"'),
        ("data:/www:x", 'data: expected ro, rw, z, Z after the target, got "x"'),
        ("./site", 'expected SOURCE:TARGET[:ro], or an absolute TARGET alone, got "./site"'),
        (":/www", f'expected {NAME_FORM}, or an absolute path, got ""'),
        ("/:/host", '/: expected a name with a letter or a digit, got "/"'),
    ],
)
def test_bad_short_volumes(text: str, message: str) -> None:
    """An error in a volume of docker's form says what is possible."""
    with pytest.raises(FlagError) as caught:
        parse_storage("--volume", [text], "/")
    assert str(caught.value).removeprefix("--volume").lstrip(": ") == message


@given(NAMES, VALUES)
def test_mounts_read_back(volume: str, target: str) -> None:
    """A mount names a volume and any path, in any order."""
    expected = Mount(volume=volume, path=target)
    assert parse_mount("--mount", f"volume={volume},target={target}") == expected
    assert parse_mount("--mount", f"target={target},volume={volume}") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", '--mount: expected volume=NAME,target=PATH, got ""'),
        ("volume=a", '--mount: expected volume=NAME,target=PATH, got "volume=a"'),
        ("volume=a,target=", '--mount: expected volume=NAME,target=PATH, got "volume=a,target="'),
        ("a:/x", '--mount: expected volume=..., target=..., got "a:/x"'),
        (
            "volume=A,target=/x",
            '--mount: volume: expected a name of lower-case letters, digits and inner dashes, got "A"',
        ),
        ("volume=a,volume=b,target=/x", "--mount: volume is given twice"),
    ],
)
def test_bad_mounts(text: str, message: str) -> None:
    """An error in a mount is one line."""
    with pytest.raises(FlagError) as caught:
        parse_mount("--mount", text)
    assert str(caught.value) == message


@given(st.text())
def test_any_value_is_read_or_refused(text: str) -> None:
    """No value leads to anything but a result or a FlagError that names the flag."""
    for flag, parse in (("--volume", parse_volume), ("--mount", parse_mount)):
        try:
            parse(flag, text)
        except FlagError as error:
            assert str(error).startswith(flag)


DATA = Volume(name="data", kind="host", source="/srv")


def test_consistent_volumes() -> None:
    """One volume may be mounted in several places, and the same place be taken in several apps and for all of them."""
    here, there = Mount(volume="data", path="/a"), Mount(volume="data", path="/b")
    check_volumes([DATA], [here], [[here, there], [here], []])


@pytest.mark.parametrize(
    ("volumes", "shared", "own", "message"),
    [
        ([DATA, DATA], [], [], '--volume: several volumes are named "data"'),
        ([], ["/x"], [], '--mount: no --volume is named "data" (its target is /x)'),
        ([], [], ["/x"], '--mount: no --volume is named "data" (its target is /x)'),
        ([DATA], [], ["/x", "/y", "/x"], "--mount: several mounts of one app have the target /x"),
        ([DATA], [], ["/x", "//x/./"], "--mount: several mounts of one app have the target /x"),
        ([DATA], [], ["x", "/y/../x"], "--mount: several mounts of one app have the target /x"),
        ([DATA], ["/", "/.."], [], "--mount: several mounts of one app have the target /"),
    ],
)
def test_contradictions(volumes: list[Volume], shared: list[str], own: list[str], message: str) -> None:
    """Volumes of one name, mounts of no volume, and mounts of one app with one target are refused."""
    with pytest.raises(FlagError) as caught:
        check_volumes(
            volumes,
            [Mount(volume="data", path=path) for path in shared],
            [[Mount(volume="data", path=path) for path in own]],
        )
    assert str(caught.value) == message


def test_a_volume_of_one_app() -> None:
    """--mnt-volume is a volume and its place in one."""
    text = "name=data,kind=host,source=/srv,target=/mnt,readOnly=true,recursive=false"
    volume = Volume(name="data", kind="host", source="/srv", read_only=True, recursive=False)
    assert parse_mounted_volume("--mnt-volume", text) == Mount(volume="data", path="/mnt", app_volume=volume)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "data,kind=empty,target=/a",
            "--mnt-volume: expected name=..., target=..., kind=..., source=..., readOnly=...",
        ),
        ("name=data,kind=empty", "--mnt-volume: expected name=NAME,kind=KIND,target=PATH,..., got"),
        ("name=A,kind=empty,target=/a", "--mnt-volume: name: expected a name of lower-case letters"),
        ("name=a,kind=host,target=/a", "--mnt-volume a: expected source=PATH with an absolute path"),
        ("name=a,kind=empty,source=/b,target=/a", "--mnt-volume a: a volume of kind empty has no source"),
    ],
)
def test_bad_volumes_of_one_app(text: str, message: str) -> None:
    """An error is one line that names the option."""
    with pytest.raises(FlagError) as caught:
        parse_mounted_volume("--mnt-volume", text)
    assert str(caught.value).startswith(message)
