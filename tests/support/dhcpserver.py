"""busybox's DHCP server in a network namespace of its own, on a bridge of the present one."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.networks import make_network, remove_network
from tests.support.pods import BUSYBOX

BRIDGE = "lan"
ADDRESS = "192.0.2.1"

_CONFIG = """
interface server
start {first}
end {last}
min_lease 1
lease_file {directory}/leases
pidfile {directory}/pid
option subnet 255.255.255.0
option lease {lease}
{options}
"""


class DhcpServer:
    """The server's machine, at 192.0.2.1; the server on it begins with `start`, and ends with `stop`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.namespace = make_network(directory / "server")
        # One that is left alone takes the lowest address of its ports.
        run("ip", "link", "add", BRIDGE, "address", "02:00:00:00:00:01", "type", "bridge")
        run("ip", "link", "set", BRIDGE, "up")
        run("ip", "link", "add", "port", "type", "veth", "peer", "name", "server", "netns", self.namespace)
        run("ip", "link", "set", "port", "master", BRIDGE, "up")
        for words in (f"address add {ADDRESS}/24 dev server", "link set server up"):
            run(*self._here, "ip", *words.split())

    @property
    def _here(self) -> tuple[str, ...]:
        return ("nsenter", f"--net={self.namespace}")

    def start(self, *options: str, first: str = "192.0.2.20", last: str = "192.0.2.20", lease: int = 3600) -> None:
        """Serve these addresses, without any memory of those before."""
        config = self._directory / "udhcpd.conf"
        lines = "\n".join(f"option {option}" for option in options)
        text = _CONFIG.format(directory=self._directory, first=first, last=last, lease=lease, options=lines)
        config.write_text(text)
        (self._directory / "leases").write_bytes(b"")
        # It asks for a moment whether anybody has an address before it offers it.
        command = [*self._here, str(BUSYBOX), "udhcpd", "-f", "-a", "50", str(config)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop(self) -> None:
        """Serve no more."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        """Take the machine away."""
        self.stop()
        for link in ("port", BRIDGE):
            run("ip", "link", "delete", link)
        remove_network(self.namespace)


def run(*command: str) -> str:
    """Run a program and return its output."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
