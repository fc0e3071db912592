"""The `run` entrypoint, executed as stage0 does."""

from __future__ import annotations

import pytest

from tests.support.pods import shell


@pytest.mark.parametrize("overlay", [True, False])
def test_exit_code_reaches_the_caller_and_the_status_file(make_pod, overlay):
    """The code of the only app is the entrypoint's own and stands in rkt/status."""
    pod = make_pod({"a": shell("echo hello; exit 42")}, overlay=overlay)
    result = pod.run()
    assert result.returncode == 42, result.stderr
    assert pod.status("a") == 42
    assert "hello" in result.stdout
    assert result.stderr == ""
