"""Attaching to the streams of an app by either command."""

from __future__ import annotations

import pytest

from tests.support.commands import Stage0
from tests.support.terminal import Terminal
from tests.support.waiting import wait_for

pytestmark = pytest.mark.usefixtures("experiment")


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request that rkt wants before it attaches."""
    monkeypatch.setenv("RKT_EXPERIMENT_ATTACH", "true")


def wait_attachable(stage0: Stage0, uuid: str) -> None:
    """Ask for the endpoints until there are some, as rkt's users do."""
    wait_for(lambda: stage0.call("attach", "--mode=list", uuid).returncode == 0, "the endpoints")


def test_streams(stage0: Stage0) -> None:
    """Piped input reaches the app; both outputs come to where they should, and single ones if that is asked for."""
    script = 'while read x; do echo "o:$x"; echo "e:$x" >&2; done'
    streams = ("--stdin=stream", "--stdout=stream", "--stderr=stream")
    words = stage0.run_words(stage0.image(), *streams, "--exec=/bin/sh", "--", "-c", script)
    with stage0.running(*words) as uuid:
        wait_attachable(stage0, uuid)
        listing = stage0.call("attach", "--mode=list", uuid).stdout
        assert listing.startswith('{\n    "version": 1,\n    "targets": [\n        {\n            "name": "stdin",')
        result = stage0.call("attach", "--mode=stdin,tty", uuid)
        assert result.returncode == 254
        assert 'incompatible endpoints "stdin,tty", cannot simultaneously attach TTY and streams' in result.stderr
        result = stage0.call("attach", "--mode=tty", uuid)
        assert (result.returncode, result.stdout) == (254, "")
        assert 'attach: app "busybox" has no tty-in to attach to' in result.stderr
        result = stage0.call("attach", uuid, stdin=None, input="one\n")
        assert (result.returncode, result.stdout, result.stderr) == (0, "o:one\n", "e:one\n")


def test_a_terminal(stage0: Stage0) -> None:
    """The app has a terminal of the caller's size and goes on when the caller detaches; its end ends the client."""
    streams = ("--stdin=tty", "--stdout=tty", "--stderr=tty")
    words = stage0.run_words(stage0.image(), *streams, "--exec=/bin/busybox", "--", "sh", "-i")
    with stage0.running(*words) as uuid, Terminal(31, 97) as terminal:
        wait_attachable(stage0, uuid)
        for number, last in ((1, b"\x10\x11"), (2, b"exit\r")):
            client = stage0.start("attach", uuid, **terminal.options)
            terminal.expect(rb"# ")
            terminal.type(b"busybox stty size; echo number %d; busybox test -t 0 && echo terminal\r" % number)
            terminal.expect(rb"\r\n31 97\r\nnumber %d\r\nterminal\r\n" % number)
            terminal.type(last)
            assert terminal.finish(client) == 0
            assert not terminal.is_raw


def test_an_app_that_logs(stage0: Stage0) -> None:
    """Without an attachable stream there is nothing to list or to attach to."""
    words = stage0.run_words(stage0.image(), "--exec=/bin/busybox", "--", "sleep", "1000")
    with stage0.running(*words) as uuid:
        for mode in ("list", "auto"):
            result = stage0.call("attach", f"--mode={mode}", uuid)
            assert (result.returncode, result.stdout) == (254, "")
            assert 'attach: app "busybox" is not attachable' in result.stderr
            assert "attach failed: error executing stage1 entrypoint: exit status 254" in result.stderr
