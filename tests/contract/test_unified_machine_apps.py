"""Apps that are added on a machine that has the unified hierarchy of control groups alone, booted for that."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.machine import BOOT_SECONDS, find_kernel, run_on_machine
from tests.support.pods import MakePod, shell
from tests.support.sandbox import MUTABLE

pytestmark = pytest.mark.long

# The busybox of a distribution may have no flock(1).
_LOCK = "#include <sys/file.h>\nint main(void) { return flock(9, LOCK_EX); }\n"

_SCRIPT = """
mount -t cgroup2 none /sys/fs/cgroup
mkdir -p /sys/fs/cgroup/user.slice/session.scope
echo $$ > /sys/fs/cgroup/user.slice/session.scope/cgroup.procs
cd /machine/pod

start() {
    exec 9< .
    /machine/lock
    RKT_LOCK_FD=9 exec stage1/rootfs/entrypoints/run --net=none --mutable $(cat uuid)
}

app() {  # VERB FLAGS
    stage1/rootfs/entrypoints/app_$1 --app=a $2 >> /machine/out 2>&1
    echo "fact $1-$((count += 1)) $?"
}

start > /machine/out 2>&1 &
launcher=$!
until [ -L stage1/rootfs/rkt/supervisor-status ]; do sleep 0.1; done
mv with-app pod
app add --uuid=$(cat uuid)
group="/sys/fs/cgroup/$(cat subcgroup)/system.slice/a.service"
echo "fact limit $(cat $group/memory.max)"
app start
echo "fact processes $(cat $group/cgroup.procs | wc -l)"
app stop
# A group that was killed once takes processes all the same.
echo 1 > $group/cgroup.kill
app start
echo "fact processes-again $(cat $group/cgroup.procs | wc -l)"
app rm
echo "fact group $([ -e $group ] && echo there || echo gone)"
kill -TERM $launcher
wait $launcher
echo "fact code $?"
while read -r line; do echo "said $line"; done < /machine/out
"""


@pytest.mark.timeout(BOOT_SECONDS + 60)
def test_an_app_on_the_unified_hierarchy(make_pod: MakePod, tmp_path: Path) -> None:
    """It is limited, although its pod was started without limits, and can be started, stopped and removed."""
    kernel = find_kernel()
    limited = [{"name": "resource/memory", "value": {"limit": "64Mi"}}]
    pod = make_pod({"a": shell("exec sleep 1000", isolators=limited)}, overlay=False, annotations=MUTABLE)
    machine = tmp_path / "machine"
    shutil.copytree(pod.path, machine / "pod", symlinks=True)
    (machine / "pod/uuid").write_text(pod.uuid)
    manifest = (machine / "pod/pod").read_text()
    (machine / "pod/with-app").write_text(manifest)
    (machine / "pod/pod").write_text(json.dumps({**json.loads(manifest), "apps": []}))
    (tmp_path / "lock.c").write_text(_LOCK)
    subprocess.run(["cc", "-static", "-o", machine / "lock", tmp_path / "lock.c"], check=True)
    said = run_on_machine(kernel, machine, _SCRIPT, tmp_path)
    facts = dict(line.split(" ", 2)[1:] for line in said if line.startswith("fact "))
    about = [line for line in said if line.startswith(("fact ", "said "))]
    verbs = ("add-1", "start-2", "stop-3", "start-4", "rm-5", "code")
    assert {verb: facts[verb] for verb in verbs} == dict.fromkeys(verbs, "0"), about
    assert facts["limit"] == "67108864"
    assert int(facts["processes"]) > 0 and int(facts["processes-again"]) > 0
    assert facts["group"] == "gone"
