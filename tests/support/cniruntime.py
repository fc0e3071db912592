"""A runtime of containers that calls plugins of the CNI as programs, as others than minit do."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minit.manifest.networkconfig import CNI_VERSIONS

ID = "8f1b6a3e-3c3e-4b1c-9a57-000000000077"
NEWEST = CNI_VERSIONS[-1]
Answer = dict[str, Any]


class Runtime:
    """A runtime of containers on a machine with the plugins of one stage1 image, and a container."""

    def __init__(self, plugins: Path, directory: Path, namespace: str) -> None:
        self.plugins = plugins
        self.directory = directory
        self.namespace = namespace
        self.leases = directory / "leases"

    def config(self, kind: str, **more: Any) -> Answer:
        """Return a configuration of the newest version, with addresses of 10.78.0.0/24."""
        ipam = {"type": "host-local", "subnet": "10.78.0.0/24", "dataDir": str(self.leases)}
        return {"cniVersion": NEWEST, "name": "lan", "type": kind, "ipam": ipam, **more}

    def run(
        self, command: str, config: object, program: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Execute a plugin, that of the configuration unless a program is given."""
        if program is None:
            assert isinstance(config, dict)
            program = self.plugins / config["type"]
        return self._execute([str(program)], command, config, environment)

    def run_under(
        self, words: Sequence[str], fd: int, command: str, config: Answer
    ) -> subprocess.CompletedProcess[str]:
        """Execute the plugin of a configuration by another program, which writes to a descriptor."""
        return self._execute([*words, str(self.plugins / config["type"])], command, config, {}, (fd,))

    def _execute(
        self,
        words: Sequence[str],
        command: str,
        config: object,
        environment: Mapping[str, str],
        pass_fds: Sequence[int] = (),
    ) -> subprocess.CompletedProcess[str]:
        variables = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": ID,
            "CNI_NETNS": self.namespace,
            "CNI_IFNAME": "eth0",
            "CNI_PATH": str(self.plugins),
            **environment,
        }
        return subprocess.run(
            words,
            input=json.dumps(config),
            env={name: value for name, value in variables.items() if value},
            capture_output=True,
            text=True,
            pass_fds=pass_fds,
        )

    def ask(self, command: str, config: Answer, program: Path | None = None, **environment: str) -> Answer:
        """Return the answer of a plugin that must succeed, an empty one for none."""
        done = self.run(command, config, program, **environment)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        answer: Answer = json.loads(done.stdout or "{}")
        return answer

    def refused(self, command: str, config: object, program: Path | None = None, **environment: str) -> Answer:
        """Return the error of a plugin that must fail, which is one line."""
        done = self.run(command, config, program, **environment)
        assert (done.returncode, done.stderr) == (1, "")
        assert done.stdout.count("\n") == 1
        answer: Answer = json.loads(done.stdout)
        return answer

    def in_pod(self, *command: str) -> str:
        """Run a command in the container's network and return its output."""
        return output("nsenter", f"--net={self.namespace}", *command)

    def leased(self) -> list[str]:
        """Return the addresses that are taken."""
        return sorted(path.name for path in self.leases.glob("lan/*.*.*.*"))

    def traces(self) -> str:
        """Return which links there are on the host, whatever their state, and the rules."""
        links = [line.split(": ")[1] for line in output("ip", "-o", "link").splitlines()]
        return f"{links}\n{output('nft', 'list', 'ruleset')}"


def output(*command: str) -> str:
    """Run a command and return its output."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
