"""`minit image build --from`: an image of another one, with files of this machine and what commands make of it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import Stage0
from tests.support.pods import LOOPBACK_ONLY

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")


def build(minit: Stage0, *words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Build an image without a network."""
    result = minit.call("image", "build", "--quiet", "--net=none", minit.stage1_flag, *words)
    assert result.returncode == code, result
    result.stderr = result.stderr.replace(LOOPBACK_ONLY, "")
    return result


def test_steps_in_their_order(minit: Stage0, tmp_path: Path) -> None:
    """Copies and commands act on one root in their order, and the image has that root and the app's new settings."""
    site = tmp_path / "site"
    (site / "deep").mkdir(parents=True)
    (site / "deep/page").write_text("hello\n")
    (site / "page").write_text("top\n")
    os.chown(site / "page", 5, 6)
    (site / "page").chmod(0o4755)
    base = minit.image(
        environment=[{"name": "KEPT", "value": "yes"}, {"name": "A", "value": "old"}],
        mountPoints=[{"name": "data", "path": "/srv/www"}],
    )
    result = build(
        minit,
        *("--from", base, "--name=example.com/web:2.0.0", "--env=A=new", "--workdir=/home/here", "--user=7"),
        *("--copy", f"{site}:/srv/www"),
        *("--run", "busybox cat /srv/www/deep/page; echo $A $KEPT; pwd > /pwd; busybox id"),
        *("--run", "busybox rm /srv/www/deep/page; busybox ln -s /srv /link"),
        *("--copy", f"{site}/page:/link/www/deep/copied", "--run", "busybox touch /link/www/last"),
        *("--copy", f"{site}/page:/etc/"),
        *("--exec=/bin/busybox", "--", "cat", "/pwd"),
    )
    image = result.stdout.splitlines()[-1]
    said = [line.partition("]: ")[2] for line in result.stdout.splitlines()[:-1]]
    assert said == ["hello", "new yes", "uid=0 gid=0"]
    assert image.startswith("sha512-")
    out = tmp_path / "out"
    assert minit.call("image", "extract", "--rootfs-only", "example.com/web:2.0.0", out).returncode == 0
    found = sorted(str(path.relative_to(out)) for path in out.glob("srv/**/*"))
    assert found == ["srv/www", "srv/www/deep", "srv/www/deep/copied", "srv/www/last", "srv/www/page"]
    status = (out / "etc/page").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o755, 0)
    assert (out / "pwd").read_text() == "/home/here\n"
    manifest = json.loads(minit.call("image", "cat-manifest", image).stdout)
    app = manifest["app"]
    assert (app["exec"], app["user"], app["workingDirectory"]) == (["/bin/busybox", "cat", "/pwd"], "7", "/home/here")
    assert {each["name"]: each["value"] for each in app["environment"]} == {"KEPT": "yes", "A": "new"}
    assert minit.call(*minit.run_words("example.com/web")).stdout.endswith("/home/here\n")
    assert len(minit.call("list", "--no-legend").stdout.splitlines()) == 1


def test_failures(minit: Stage0, tmp_path: Path) -> None:
    """A command that fails ends the build with its code, and leaves no image and no pod; so does a bad option."""
    base = minit.image()
    output = tmp_path / "out.aci"
    steps = ("--run=true", "--run=exit 3", "--run=echo never > /never")
    result = build(minit, "--from", base, "--output", output, *steps, code=254)
    assert "failed: exit 3" in result.stderr
    assert result.stderr.splitlines()[-1] == "build: --run failed with exit code 3"
    assert not output.exists()
    assert "cannot copy" in build(minit, "--from", base, "--output", output, "--copy=none:/x", code=254).stderr
    # As confined as an app.
    script = "busybox mount -t tmpfs none /tmp && exit 7; busybox mknod /d b 8 0 && exit 8; exit 0"
    build(minit, "--from", base, "--output", output, "--run", script)
    assert output.exists()
    wrong: list[tuple[tuple[object, ...], str]] = [
        (("--from", base), "needs a name"),
        (("--run=true", "--output=x"), "--copy and --run need --from"),
        (("--from", base, "--copy=x"), "--copy: expected SOURCE:/PATH"),
        (("--from", base, "--rootfs=/", "--name=x"), "--from excludes --rootfs"),
        ((), "expected one CONTEXT"),
        (("--rootfs=/",), "missing option '--output'"),
        (("--from", base, "--tag=x"), "--tag is for a Containerfile, which --from is not for"),
    ]
    for words, message in wrong:
        assert message in minit.call("image", "build", *words).stderr
    assert minit.call("list", "--no-legend").stdout == ""
