"""The credentials of pulls, and pulls that are shared; no processes."""

from __future__ import annotations

import base64
import json

import pytest
import trio
import trio.testing

from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import CallError
from minit.cri.imagecalls import SharedPulls, authfile


@pytest.mark.parametrize(
    ("auth", "expected"),
    [
        (api.AuthConfig(), None),
        (api.AuthConfig(server_address="https://example.com/v2/"), None),
        (api.AuthConfig(username="u", password="p:q"), {"auth": "u:p:q"}),
        (api.AuthConfig(username="u", password="p", server_address="example.com"), {"auth": "u:p"}),
        (api.AuthConfig(auth=base64.b64encode(b"u:p\0").decode()), {"auth": "u:p"}),
        (api.AuthConfig(identity_token="t"), {"auth": "<token>:", "identitytoken": "t"}),
    ],
)
def test_credentials(auth: api.AuthConfig, expected: dict[str, str] | None) -> None:
    """They become an entry for the image's registry; without any there is nothing."""
    content = authfile(auth, "example.com")
    if expected is None:
        assert content == b""
    else:
        encoded = expected | {"auth": base64.b64encode(expected["auth"].encode()).decode()}
        assert json.loads(content) == {"auths": {"example.com": encoded}}


@pytest.mark.parametrize(
    ("auth", "message"),
    [
        (api.AuthConfig(registry_token="secret"), "auth.registry_token: expected a password or an identity token"),
        (api.AuthConfig(username="secret:x", password="y"), "auth.username: expected a name without a colon"),
        (api.AuthConfig(password="secret"), "auth.username: expected a name beside the password"),
        (api.AuthConfig(auth="secret"), "auth.auth: expected a name, a colon and a password in base64"),
        (api.AuthConfig(auth=base64.b64encode(b"secret").decode()), "auth.auth: expected a name, a colon"),
        (
            api.AuthConfig(username="u", server_address="https://secret.example"),
            "auth.server_address: expected docker.io",
        ),
        (api.AuthConfig(username="u", server_address="//["), "auth.server_address: expected docker.io"),
    ],
)
def test_credentials_that_are_refused(auth: api.AuthConfig, message: str) -> None:
    """The field is named, and nothing of its value."""
    with pytest.raises(CallError) as caught:
        authfile(auth, "docker.io")
    assert str(caught.value).startswith(message) and "secret" not in str(caught.value)


def test_hosts_of_dockers_own_registry() -> None:
    """All names of Docker's registry are the one that skopeo knows it by."""
    auth = api.AuthConfig(username="u", password="p", server_address="https://index.docker.io/v1/")
    assert list(json.loads(authfile(auth, "docker.io"))["auths"]) == ["docker.io"]


@pytest.mark.trio
async def test_calls_share_a_pull(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    """Calls for one image with the same credentials wait for one pull, and each has its outcome."""
    begun: list[tuple[str, bytes]] = []

    async def fetch(name: str, credentials: bytes) -> str:
        begun.append((name, credentials))
        await trio.sleep(1)
        if name == "bad":
            raise ValueError(name)
        return f"id of {name}"

    pulls, outcomes = SharedPulls(nursery, fetch), []

    async def call(name: str, credentials: bytes = b"") -> None:
        try:
            outcomes.append(await pulls.pull(name, credentials))
        except ValueError:
            outcomes.append("failed")

    async with trio.open_nursery() as calls:
        for name, credentials in (("a", b""), ("a", b""), ("a", b"secret"), ("bad", b""), ("bad", b"")):
            calls.start_soon(call, name, credentials)
    assert sorted(begun) == [("a", b""), ("a", b"secret"), ("bad", b"")]
    assert sorted(outcomes) == ["failed"] * 2 + ["id of a"] * 3
    await call("a")
    assert len(begun) == 4


@pytest.mark.trio
async def test_a_pull_ends_with_its_last_caller(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    """A pull goes on while somebody waits and is cancelled after that; who comes meanwhile begins anew."""
    begun: list[str] = []
    given_up: list[int] = []
    undone: list[int] = []

    async def fetch(name: str, credentials: bytes) -> str:
        number = len(begun)
        begun.append(name)
        try:
            await trio.sleep(10 if number == 0 else 1)
        except trio.Cancelled:
            given_up.append(number)
            with trio.CancelScope(shield=True):
                await trio.sleep(100)
            undone.append(number)
            raise
        return str(number)

    pulls = SharedPulls(nursery, fetch)
    async with trio.open_nursery() as calls:
        scopes = [trio.CancelScope(deadline=trio.current_time() + seconds) for seconds in (2, 4)]

        async def call(scope: trio.CancelScope) -> None:
            with scope:
                await pulls.pull("a", b"")

        for scope in scopes:
            calls.start_soon(call, scope)
        await trio.sleep(3)
        assert not given_up and scopes[0].cancelled_caught
        await trio.sleep(2)
        assert scopes[1].cancelled_caught and given_up == [0]
        assert await pulls.pull("a", b"") == "1" and not undone
        await trio.sleep(100)
        assert undone == [0]
