"""minit.plan.rights.users: user and group by number, by a file's owner, by name; Docker images as an exception."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minit.base.errors import PlanError
from minit.base.idrange import HeldIds, IdRange
from minit.base.userdatabase import find_account, find_id, find_memberships
from minit.base.value import replace
from minit.manifest.app import App
from minit.manifest.image import ImageManifest
from minit.manifest.pod import RuntimeApp
from minit.plan.appplan import plan_app
from minit.plan.confinement import confine
from minit.plan.life.appenvironment import ROOT_VARIABLES, user_variables
from minit.plan.loadedpod import AppInput
from minit.plan.rights.users import (
    PRIMARY,
    SUPPLEMENTARY,
    AppLookups,
    Lookup,
    parse_id,
    plan_ids,
    plan_image_groups,
    plan_supplementary,
)
from minit.plan.root.mountoperations import MountFilesystem, pod_mounts
from tests.support.planning import app_input

APP = App(exec=("/bin/app",), user="0", group="0")
IMAGE = ImageManifest(ac_version="0.8.11", name="example.com/web", app=APP)
DOCKER = (("appc.io/docker/repository", "library/web"),)
PASSWD = b"root:x:0:0:root:/root:/bin/sh\nweb:x:1000:77:Web:/srv:/bin/sh\n"
NUMBERS = AppLookups()
GROUPS = b"root:x:0:\nweb:x:2000:a,b\n"


def ids_of(user: str, group: str = "0", lookups: AppLookups = NUMBERS) -> tuple[int, int]:
    """Return uid and gid of an app of a plain image."""
    return plan_ids("web", replace(APP, user=user, group=group), IMAGE, lookups)


def refusal_of(user: str, group: str = "0", lookups: AppLookups = NUMBERS) -> str:
    """Return why an app cannot run as that."""
    with pytest.raises(PlanError) as caught:
        ids_of(user, group, lookups)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("0", 0), ("000", 0), ("root", 0), ("1000", 1000), ("0042", 42), ("4294967294", 4294967294)),
        *(("+5", 5), ("-0", 0), ("+0", 0)),
    ],
)
def test_numbers(text: str, number: int) -> None:
    """`root` and decimal numbers need nothing of the image, for user and group apart."""
    assert parse_id(text) is not None
    assert ids_of(text, "7") == (number, 7)
    assert ids_of("7", text) == (7, number)


def test_owners_with_private_users() -> None:
    """The owner of a file is an id of the host, and the app's is what the pod has for it."""
    mapped = IdRange(shift=100000, count=65536)
    app = replace(APP, user="/file", group="/file")
    lookups = AppLookups(user=Lookup(owner=100012), group=Lookup(owner=100034))
    assert plan_ids("web", app, IMAGE, lookups, mapped) == (12, 34)
    for owner in (12, 99999, 165536):
        stray = replace(lookups, user=Lookup(owner=owner))
        with pytest.raises(PlanError, match=f"its owner on the host, {owner}, is unmapped"):
            plan_ids("web", app, IMAGE, stray, mapped)


@pytest.mark.parametrize("text", ["-1", "-5", "-4294967296", "-" + "1" * 5000])
def test_negative_numbers(text: str) -> None:
    """rkt's words for them."""
    assert refusal_of(text) == f'app "web": user "{text}": Invalid uid or gid'
    assert refusal_of("0", text) == f'app "web": group "{text}": Invalid uid or gid'


@pytest.mark.parametrize("text", ["4294967295", "4294967296", "+99999999999", "0" * 9 + "1" * 5000])
def test_numbers_that_are_too_large(text: str) -> None:
    """A number that setresuid(2) would take for "unchanged", or cut off, is refused."""
    assert refusal_of(text) == f'app "web": user "{text}": expected a number of at most 4294967294'


@pytest.mark.parametrize("text", ["", "+", "-", "--1", "1.0", " 1", "1 ", "0x1", "1_0", "٣", "²", "1e3", "Root"])
def test_what_is_no_number(text: str) -> None:
    """Anything that Go's Atoi does not read is a name."""
    assert parse_id(text) is None
    assert refusal_of(text) == f'app "web": "{text}" user not found in /etc/passwd of its image'


def test_names() -> None:
    """A user is looked up in passwd, a group in group; the user's primary group does not matter."""
    lookups = AppLookups(user=Lookup(database=PASSWD), group=Lookup(database=GROUPS))
    assert ids_of("web", "web", lookups) == (1000, 2000)
    assert ids_of("web", "5", lookups) == (1000, 5)
    assert refusal_of("user2", "web", lookups) == 'app "web": "user2" user not found in /etc/passwd of its image'
    assert refusal_of("web", "group2", lookups) == 'app "web": "group2" group not found in /etc/group of its image'


def test_a_database_that_cannot_be_read() -> None:
    """The line says which and why."""
    failed = Lookup(failure="/etc/passwd: no such file or directory")
    assert refusal_of("web", "0", AppLookups(user=failed)) == (
        'app "web": "web" user not found: /etc/passwd: no such file or directory'
    )


def test_owners_of_files() -> None:
    """A path stands for the file's owner, or the file's group."""
    lookups = AppLookups(user=Lookup(owner=12), group=Lookup(owner=34))
    assert ids_of("/srv/file", "/srv/file", lookups) == (12, 34)
    assert ids_of("/srv/file", "1", lookups) == (12, 1)
    failed = Lookup(failure="/srv/file: no such file or directory")
    for what, refusal in (
        ("user", refusal_of("/srv/file", "0", AppLookups(user=failed))),
        ("group", refusal_of("0", "/srv/file", AppLookups(group=failed))),
    ):
        assert refusal == f'app "web": {what}: lstat /srv/file: no such file or directory'


def test_the_group_of_a_docker_image() -> None:
    """A group that is not there is the user, if the image was converted and names the same for both."""
    app = replace(APP, user="web", group="web")
    image = replace(IMAGE, app=app, annotations=DOCKER)
    lookups = AppLookups(user=Lookup(database=PASSWD), group=Lookup(database=b"root:x:0:\n"))
    assert plan_ids("web", app, image, lookups) == (1000, 1000)
    # The pod may run it as another user; the group must be the image's.
    assert plan_ids("web", replace(app, user="5"), image, lookups) == (5, 5)
    found = replace(lookups, group=Lookup(database=GROUPS))
    assert plan_ids("web", app, image, found) == (1000, 2000)


@pytest.mark.parametrize(
    ("image", "group"),
    [
        (replace(IMAGE, app=replace(APP, user="web", group="web")), "web"),
        (replace(IMAGE, app=replace(APP, user="web", group="www"), annotations=DOCKER), "www"),
        (replace(IMAGE, app=replace(APP, user="web", group="web"), annotations=DOCKER), "www"),
        (replace(IMAGE, app=None, annotations=DOCKER), "web"),
    ],
    ids=["not converted", "differ in the image", "overridden", "no app"],
)
def test_the_group_of_other_images(image: ImageManifest, group: str) -> None:
    """In every other case a group that is not there is an error."""
    lookups = AppLookups(user=Lookup(database=PASSWD), group=Lookup(failure="/etc/group: no such file or directory"))
    with pytest.raises(PlanError, match=f'"{group}" group not found: /etc/group'):
        plan_ids("web", replace(APP, user="web", group=group), image, lookups)


# The databases.

LINES = {
    "few fields": b"web:x:1:1:Web:/srv",
    "no number": b"web:x:one:1:Web:/srv:/bin/sh",
    "empty number": b"web:x::1:Web:/srv:/bin/sh",
    "negative": b"web:x:-1:1:Web:/srv:/bin/sh",
    "unchanged": b"web:x:4294967295:1:Web:/srv:/bin/sh",
    "long number": b"web:x:" + b"1" * 100_000 + b":1:Web:/srv:/bin/sh",
    "comment": b"#web:x:1:1:Web:/srv:/bin/sh",
    "blank": b"",
    "service": b"+::::::",
    "space": b" web:x:1:1:Web:/srv:/bin/sh",
    "binary": bytes(range(11, 256)),
    "long": b"x" * (1 << 20),
    "colons": b":" * (1 << 20),
}


@pytest.mark.parametrize("case", LINES)
def test_a_malformed_line_is_no_entry(case: str) -> None:
    """It is skipped, wherever it stands, and the entries around it count."""
    assert find_id(LINES[case], "user", b"web") is None
    good = b"web:x:7:1:Web:/srv:/bin/sh"
    assert find_id(LINES[case] + b"\n" + good, "user", b"web") == 7
    assert find_id(good + b"\n" + LINES[case], "user", b"web") == 7


def test_the_last_entry_counts() -> None:
    """Of several of a name, as in rkt."""
    assert find_id(b"a:x:1:\nb:x:2:\na:x:3:\n", "group", b"a") == 3
    assert find_id(b"a:x:1:\r\n", "group", b"a") == 1
    assert find_id(b"a:x:1:x:y:z", "group", b"a") == 1


FIELDS = st.binary(max_size=3) | st.sampled_from([b"web", b"1", b"0", b"+7", b"-1", b"x", b"4294967294"])
FILES = st.binary(max_size=60) | st.lists(st.lists(FIELDS, max_size=8).map(b":".join)).map(b"\n".join)


@given(FILES, st.sampled_from([("user", 7), ("group", 4)]), FIELDS.filter(lambda name: not set(b":\n") & set(name)))
@example(b"web:x:7:::::", ("user", 7), b"web")
def test_any_bytes_are_read_as_a_table(database: bytes, kind: tuple[str, int], name: bytes) -> None:
    """Nothing in a file is an error, and what is found is what a plain reading of its table gives."""
    rows = [line.split(b":") for line in database.split(b"\n")]
    texts = [row[2] for row in rows if row[0] == name and len(row) >= kind[1]]
    numbers = [int(text) for text in texts if re.fullmatch(rb"[+-]?[0-9]+", text)]
    valid = [number for number in numbers if 0 <= number < 2**32 - 1]
    assert find_id(database, kind[0], name) == (valid[-1] if valid else None)


@given(st.text(max_size=12), st.text(max_size=12))
def test_any_words_are_resolved_or_refused(user: str, group: str) -> None:
    """With nothing in the image each text is an id within bounds, or one PlanError."""
    missing = AppLookups(user=Lookup(failure="no"), group=Lookup(failure="no"))
    try:
        ids = ids_of(user, group, missing)
    except PlanError as error:
        assert str(error).startswith('app "web": ')
        return
    assert all(0 <= number < 2**32 - 1 for number in ids)


@pytest.mark.parametrize(
    ("user", "uid", "passwd", "expected"),
    [
        ("web", 1000, None, ROOT_VARIABLES),
        ("root", 0, b"", ROOT_VARIABLES),
        ("root", 0, b"root:x:0:0::/home/root:\n", (("USER", "root"), ("LOGNAME", "root"), ("HOME", "/home/root"))),
        ("1000", 1000, PASSWD, (("USER", "web"), ("LOGNAME", "web"), ("HOME", "/srv"))),
        ("/srv/file", 1000, PASSWD, (("USER", "web"), ("LOGNAME", "web"), ("HOME", "/srv"))),
        ("/srv/file", 1001, PASSWD, (("HOME", "/"),)),
        ("1001", 1001, PASSWD, (("HOME", "/"),)),
        (
            "web",
            1000,
            b"other:x:1000:1::/other:\nweb:x:1000:1:::\n",
            (("USER", "web"), ("LOGNAME", "web"), ("HOME", "/")),
        ),
        ("5", 5, b"a\0b:x:5:5::/\0:\n", (("HOME", "/"),)),
    ],
)
def test_variables_of_a_user(user: str, uid: int, passwd: bytes | None, expected: tuple[tuple[str, str], ...]) -> None:
    """They are those of its entry in the image, of root for a user of the image, and none that nobody can tell."""
    assert user_variables(user, uid, passwd) == expected


@given(st.binary(max_size=60), st.sampled_from([None, b"web"]), st.integers(0, 9))
@example(b"web:x:1:::/a:\nweb:x:1:::/b:\n", b"web", 1)
def test_an_account_is_that_of_its_number(database: bytes, name: bytes | None, uid: int) -> None:
    """Whatever the file holds, an account has the number, and by name it is the one whose number counts."""
    found = find_account(database, name, uid)
    if name is not None and find_id(database, "user", name) == uid:
        assert found is not None and found.name == name


OF_IMAGE = AppLookups(
    accounts=PASSWD + b"odd:x:7:x::/:\n", memberships=b"a:x:9:x,web\nb:x:5:web\nc:x:web:web\nd:x:9:web\n"
)


@pytest.mark.parametrize(
    ("user", "group", "expected"),
    [("1000", "0", (77, (77, 3, 9, 5))), ("8", "6", (6, (6, 3))), ("7", "6", (6, (6, 3))), ("root", "1", (0, (0, 3)))],
)
def test_groups_of_the_image(user: str, group: str, expected: tuple[int, tuple[int, ...]]) -> None:
    """The primary group is passwd's, if it has one; the supplementary ones are that, the app's, then the image's."""
    app = replace(APP, user=user, group=group, supplementary_gids=(3,))
    ids = plan_ids("web", app, IMAGE, OF_IMAGE, is_primary=True)
    assert (ids[1], plan_supplementary("web", app, ids, OF_IMAGE, frozenset((SUPPLEMENTARY,)), None)) == expected
    assert plan_supplementary("web", app, ids, OF_IMAGE, frozenset((PRIMARY,)), None) == (3,)


def test_groups_that_cannot_be() -> None:
    """One that the pod does not have is an error, as are more than the kernel takes."""
    mapped = IdRange(shift=100000, count=10)
    app = replace(APP, user="web")
    account = AppLookups(user=Lookup(database=b"web:x:1:77::/:"), accounts=b"web:x:1:77::/:")
    many = b"".join(b"a:x:%d:web\n" % number for number in range(70000))
    wanted = frozenset((SUPPLEMENTARY,))
    known = replace(account, memberships=OF_IMAGE.memberships)
    assert plan_supplementary("web", app, (1, 2), known, wanted, mapped) == (2, 9, 5)
    for groups, ids, reason in (
        (b"a:x:11:web", mapped, "group of its image: 11 is unmapped"),
        (many, None, "its user is in 70001 groups"),
    ):
        with pytest.raises(PlanError, match=reason):
            plan_supplementary("web", app, (1, 70001), replace(account, memberships=groups), wanted, ids)
    with pytest.raises(PlanError, match='primary group of user "web": 77 is unmapped'):
        plan_ids("web", app, IMAGE, account, mapped, is_primary=True)


@pytest.mark.parametrize("text", ["", "all", "primary,", "primary, supplementary"])
def test_other_words_for_groups(text: str) -> None:
    """Nothing but the two words is taken."""
    runtime = RuntimeApp(name="web", annotations=(("minit/image-groups", text),))
    with pytest.raises(PlanError, match="minit/image-groups: expected primary, supplementary or both"):
        plan_image_groups(runtime)


@given(st.binary(max_size=60), st.sampled_from([b"web", b"", b"a"]))
@example(b"a:x:1:web\nb:x:4294967295:web\nc:x:-1:web", b"web")
def test_memberships_are_ids(database: bytes, name: bytes) -> None:
    """Whatever the file holds, what is found are different ids."""
    found = find_memberships(database, name)
    assert len(set(found)) == len(found) and all(0 <= gid < 0xFFFFFFFF for gid in found)


ALONE = HeldIds(users=((0, 1),), groups=((0, 1),), sets_groups=False)


def held_by(held: HeldIds, **changes: Any) -> AppInput:
    """Return an app with changes, of a caller whose user namespace has these ids."""
    given = app_input(app=replace(APP, **changes))
    return replace(given, pod=replace(given.pod, facts=replace(given.pod.facts, held_ids=held)))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"user": "7"}, 'app "web": user "7": there is no user 7, only 0: let root add'),
        ({"group": "8"}, 'app "web": group "8": there is no group 8, only 0: let root add'),
        ({"supplementary_gids": (0, 5)}, 'app "web": supplementary group: there is no group 5, only 0: let root add'),
    ],
)
def test_ids_that_the_callers_namespace_lacks(changes: dict[str, Any], problem: str) -> None:
    """An app of a user or a group that the caller's user namespace lacks is refused, with app, id and remedy."""
    with pytest.raises(PlanError, match=re.escape(problem)):
        plan_app(held_by(ALONE, **changes), None)


def test_groups_that_nobody_may_set() -> None:
    """Where the kernel refuses setgroups(2) an app keeps the groups of the caller, and terminals have no group."""
    for held, sets_groups in (ALONE, False), (replace(ALONE, sets_groups=True), True):
        plan, _ = plan_app(held_by(held), None)
        assert plan.confinement.sets_groups == confine(plan.confinement, ()).sets_groups == sets_groups
    with_group, without = (
        {
            option
            for each in pod_mounts(has_tty_group=has)
            if isinstance(each, MountFilesystem)
            for option in each.options
        }
        for has in (True, False)
    )
    assert with_group - without == {("gid", "5")}
