"""Pods of a user without root on a machine with systemd, booted for that: scopes of the user's systemd, and logouts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.machine import BOOT_SECONDS, find_kernel
from tests.support.stage0_world import write_app
from tests.support.systemdmachine import USER, run_on_systemd

pytestmark = pytest.mark.long

# Each `as_user` is a login and a logout, and a user without a login has no systemd, unless the user is to linger.
_SCRIPT = r"""
mkdir /etc/systemd/logind.conf.d
printf '[Login]\nUserStopDelaySec=0\n' > /etc/systemd/logind.conf.d/stop.conf
systemctl restart systemd-logind
as_user() { su -l USER -c "$1" 2>&1 | sed "s/^/$2 /"; }
as_user 'minit image fetch box.aci stage1.aci' fetched
pod='--stage1-name=minit/stage1 example.com/busybox'

as_user "minit run --net=none $pod --memory=64Mi --pids-limit=50 --cpu=500m -- -c 'exit 5'; echo code \$?" limited
as_user "minit run --net=none $pod --cpuset-cpus=0 -- -c 'echo ran'; echo code \$?" refused
as_user "minit run --net=none $pod --memory=32Mi -- -c 'busybox tail /dev/zero'; echo code \$?" eater

serve='echo page > /tmp/index.html; exec busybox httpd -f -p 80 -h /tmp'
as_user "minit run --detach --name=web --publish=8080:80 $pod --memory=64Mi -- -c '$serve'
until busybox wget -q -O - http://127.0.0.1:8080/; do sleep 0.5; done
minit run --rm $pod -- -c 'busybox wget -q -O - http://web/'" served
while systemctl --quiet is-active user@$(id -u USER).service; do sleep 0.5; done
echo "left $(ps -U USER -o comm= | wc -l) $(find /sys/fs/cgroup -name busybox.service | wc -l)"
as_user 'minit list --format=json --filter=name=web' ended

loginctl enable-linger USER
as_user 'minit start web; echo code $?' again
group=$(find /sys/fs/cgroup/user.slice -name busybox.service)
echo "group ${group#/sys/fs/cgroup/user.slice/}"
as_user "minit app update --app=busybox --memory=48Mi web; minit app update --app=busybox --cpu=1 web" updated
echo "limit $(cat "$group/memory.max")"
as_user 'minit enter web busybox hostname; minit stop web; minit rm web; echo code $?' lingered
"""


@pytest.mark.timeout(6 * BOOT_SECONDS)
def test_pods_in_scopes_of_systemd(tmp_path: Path, stage1_image: Path) -> None:
    """
    Limits of the user's systemd hold, others are refused; pods end with the user's systemd after a logout, and with
    lingering do not.
    """
    write_app(tmp_path / "box.aci", app={"exec": ["/bin/sh"], "user": "0", "group": "0"})
    shutil.copy(stage1_image, tmp_path / "stage1.aci")
    images = [tmp_path / "box.aci", tmp_path / "stage1.aci"]
    lines = run_on_systemd(find_kernel(), tmp_path, images, _SCRIPT.replace("USER", USER))

    def said(step: str) -> list[str]:
        return [line.removeprefix(f"{step} ") for line in lines if line.startswith(f"{step} ")]

    assert said("limited")[-1] == "code 5", lines
    problem = 'stage1: app "busybox": no limit of cpuset: its control group is not delegated to you'
    assert said("refused")[0].startswith(problem) and said("refused")[1:] == ["code 254"], lines
    assert said("eater")[-2:] == ['run: app "busybox" was killed by SIGKILL (out of memory)', "code 137"], lines

    assert said("served")[-2:] == ["page", "busybox[2]: page"], lines
    assert said("left") == ["0 0"], lines
    assert [pod["state"] for pod in json.loads("".join(said("ended")))] == ["exited"], lines

    assert said("again")[-1] == "code 0", lines
    [group] = said("group")
    assert "/user@1000.service/app.slice/run-" in group and ".scope/machine-rkt" in group
    assert "no controller cpu: the pod was run without a limit of cpu" in said("updated")[-1], lines
    assert said("limit") == [str(48 << 20)], lines
    assert said("lingered")[0].startswith("rkt-") and said("lingered")[-1] == "code 0", lines
