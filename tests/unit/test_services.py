"""minit.cli.text.services: units, scripts and quadlets of pods, and the services of contrib/."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from minit.cli.text.services import (
    container_quadlet,
    kube_quadlet,
    openrc_script,
    script_of_pod,
    systemd_unit,
    unit_of_pod,
)

CONTRIB = Path(__file__).parents[2] / "contrib"
HOSTILE = ["/opt/my tools/minit", "--dir=/srv/100% $HOME", "start", "--attach", "web"]


def test_the_services_of_contrib_have_the_same_texts() -> None:
    """A generated service and one of contrib/ differ in the command, and nothing else."""
    pod = (CONTRIB / "systemd/minit-pod@.service").read_text()
    comment = "\n".join(pod.splitlines()[:2])
    start = [
        "EnvironmentFile=/etc/default/minit-pod-%i",
        "ExecStart=/usr/bin/minit run --quiet --replace --name=minit-pod-%i $POD",
    ]
    assert pod == systemd_unit(comment, "Pod %i", "run", start, ["ExecStopPost=-/usr/bin/minit rm minit-pod-%i"])
    play = (CONTRIB / "systemd/minit-play@.service").read_text()
    file = "/etc/minit/play/%i.yaml"
    assert play == systemd_unit(
        play.splitlines()[0],
        "Pod of %i.yaml",
        "play",
        [f"ExecStart=/usr/bin/minit play --quiet --replace {file}"],
        [f"ExecStopPost=-/usr/bin/minit play --down {file}"],
    )
    script = (CONTRIB / "openrc/minit-pod").read_text()
    lines = script.splitlines()
    check = script[script.index("\nstart_pre()") :]
    assert script == openrc_script(
        lines[1:6], lines[7 : lines.index('respawn_delay="${respawn_delay:-1}"')], "run", check
    )


def test_words_of_commands() -> None:
    """Blanks, per cent signs and dollars in paths stay what they are."""
    unit = unit_of_pod("web", HOSTILE)
    assert 'ExecStart="/opt/my tools/minit" "--dir=/srv/100%% $$HOME" start --attach web\n' in unit
    settings = script_of_pod("web", HOSTILE).partition("respawn_delay")[0]
    shell = f'{settings}\neval "set -- $command_args"; echo "$command|$1|$2"'
    said = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True).stdout
    assert said == "/opt/my tools/minit|--dir=/srv/100% $HOME|start\n"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on PATH")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    """systemd-analyze finds no fault."""
    unit = tmp_path / "minit-web.service"
    unit.write_text(unit_of_pod("web", ["/bin/sh", "start"]).replace("Documentation=man:minit(1)\n", ""))
    verified = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False, env={"HOME": str(tmp_path)}
    )
    assert (verified.returncode, [line for line in verified.stderr.splitlines() if unit.name in line]) == (0, [])


def test_a_quadlet_of_one_container() -> None:
    """What podman has a key for is there, and everything else is told."""
    told: list[str] = []
    container = {
        "name": "web",
        "image": "docker.io/library/nginx:1",
        "command": ["/bin/sh", "-c", "echo $HOME 5%"],
        "env": [{"name": "A", "value": "b c"}, {"name": "IP", "valueFrom": {}}],
        "ports": [{"containerPort": 80, "hostPort": 8080, "hostIP": "127.0.0.1"}, {"containerPort": 81}],
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": "etc", "mountPath": "/conf", "subPath": "x", "readOnly": True},
            {"name": "secret", "mountPath": "/secret"},
        ],
        "securityContext": {"runAsUser": 5, "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]}, "seccompProfile": {}},
        "resources": {"limits": {"memory": "64Mi", "cpu": "1"}},
        "livenessProbe": {},
    }
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "pgdata"}},
        {"name": "etc", "hostPath": {"path": "/etc"}},
        {"name": "secret", "secret": {"secretName": "s"}},
    ]
    spec = {"containers": [container], "volumes": volumes, "restartPolicy": "OnFailure", "dnsConfig": {}}
    lines = container_quadlet("web", {"spec": spec}, told.append).splitlines()
    assert lines[lines.index("[Container]") + 1 : lines.index("[Service]") - 1] == [
        "ContainerName=web",
        "Image=docker.io/library/nginx:1",
        "Entrypoint=/bin/sh",
        'Exec=-c "echo $$HOME 5%%"',
        'Environment="A=b c"',
        "PublishPort=127.0.0.1:8080:80",
        "Volume=pgdata:/data",
        "Volume=/etc/x:/conf:ro",
        "User=5",
        "DropCapability=ALL",
        "AddCapability=CAP_CHOWN",
        "PodmanArgs=--memory=64m",
    ]
    assert "Restart=on-failure" in lines
    assert told == [
        "a quadlet has no variable from elsewhere: IP",
        "a quadlet has no volume like secret, for /secret",
        "a quadlet has no securityContext.seccompProfile",
        "limits that a quadlet has no key for: cpu",
        "a quadlet of one container has no livenessProbe",
        "a quadlet of one container has no dnsConfig",
    ]
    assert "Yaml=web.yaml" in kube_quadlet("web")
