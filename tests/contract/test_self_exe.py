"""An app cannot change programs of the host through the files PID 1 was loaded from."""

from __future__ import annotations

import pytest

from tests.support.pods import MakePod, shell

_TRY_TO_WRITE = """
for file in /proc/1/exe /proc/1/map_files/*; do
    (: >> $file) 2>&1 && echo "wrote $file"
done
echo tried $(ls /proc/1/map_files | wc -l)
"""


@pytest.mark.parametrize(
    ("retained", "flags"),
    [
        (None, ["--disable-capabilities-restriction"]),
        # CAP_CHECKPOINT_RESTORE is what following a link of map_files takes.
        (["CAP_SYS_PTRACE", "CAP_CHECKPOINT_RESTORE"], []),
        (["CAP_SYS_PTRACE", "CAP_SYS_ADMIN"], []),
    ],
)
@pytest.mark.host_users("links of map_files are followed with capabilities of the host only")
@pytest.mark.host_root("links of map_files are followed with capabilities of the host only")
def test_an_app_that_reaches_pid_1_cannot_write_the_interpreter(
    make_pod: MakePod, retained: list[str] | None, flags: list[str]
) -> None:
    """Even with the capabilities for it, every file PID 1 runs from is on a read-only mount, or busy."""
    isolators = [] if retained is None else [{"name": "os/linux/capabilities-retain-set", "value": {"set": retained}}]
    pod = make_pod({"a": shell(_TRY_TO_WRITE, isolators=isolators)})
    result = pod.run(*flags)
    lines = [line.partition("]: ")[2] for line in result.stdout.splitlines()]
    assert result.returncode == 0, result.stderr
    assert lines[-1].startswith("tried ") and int(lines[-1].split()[1]) > 20
    assert all(line.endswith(("Read-only file system", "Text file busy")) for line in lines[:-1]), lines
    assert any("map_files" in line for line in lines[:-1])


@pytest.mark.rootless
def test_a_default_app_cannot_even_look(make_pod: MakePod) -> None:
    """With the default capabilities PID 1 is out of reach: it is not dumpable."""
    pod = make_pod({"a": shell("ls /proc/1/map_files /proc/1/root/ 2>&1; readlink /proc/1/exe || echo no exe")})
    result = pod.run()
    assert "no exe" in result.stdout
    assert "rkt" not in result.stdout.replace("rkt-", "")
