"""The options of a pod's last run, by the arguments that its stage1 got from `run_arguments`."""

from __future__ import annotations

from collections.abc import Sequence

from minit.base.value import Value

_HOST = "host"
_INSECURE = ("disable-capabilities-restriction", "disable-paths", "disable-seccomp")


class LastRun(Value):
    """
    What the last run of a pod was told; `networks` are the entries of --net.

    `has_names` tells that name servers or hosts were given, `is_insecure` that some protection was taken away.
    """

    networks: tuple[str, ...] = ()
    hostname: str = ""
    ipc: str = ""
    interactive: bool = False
    private_users: bool = False
    has_names: bool = False
    is_insecure: bool = False

    @property
    def has_host_network(self) -> bool:
        """Tell whether the pod was in the network of the host."""
        return _HOST in self.networks


def read_last_run(words: Sequence[str]) -> LastRun:
    """Return the options in the arguments of a run."""
    given = dict(word.removeprefix("--").partition("=")[::2] for word in words if word.startswith("--"))
    return LastRun(
        networks=tuple(entry for entry in given.get("net", "").split(",") if entry),
        hostname=given.get("hostname", ""),
        ipc=given.get("ipc", ""),
        interactive="interactive" in given,
        private_users="private-users" in given,
        has_names="dns-conf-mode" in given,
        is_insecure=any(name in given for name in _INSECURE),
    )
