"""
Words of docker's, podman's, kubectl's and rkt's that minit does not have, and minit's words instead.

Read where a command is unknown. docs/comparison.md has the same words with more about each; tests compare them with it
and with the commands that there are.
"""

from __future__ import annotations

from collections.abc import Container

INSTEAD: dict[str, dict[str, str]] = {
    "minit": {
        "apply": "play",
        "build": "image build",
        "commit": "export",
        "create": "prepare",
        "delete": "rm",
        "describe": "status",
        "df": "system df",
        "down": "play",
        "exec": "enter",
        "get": "list",
        "history": "image cat-manifest",
        "images": "image list",
        "import": "fetch",
        "info": "version",
        "inspect": "status --format=json",
        "kill": "stop --force",
        "kube": "play",
        "load": "fetch",
        "ls": "list",
        "pause": "app pause",
        "prune": "system prune",
        "ps": "list",
        "pull": "fetch",
        "remove": "rm",
        "restart": "start",
        "rmi": "image rm",
        "save": "image export",
        "shell": "enter",
        "stats": "app stats",
        "unpause": "app resume",
        "update": "app update",
        "volumes": "volume ls",
        "wait": "status --wait",
    },
    "app": {
        "attach": "attach",
        "kill": "app stop",
        "logs": "logs",
        "ls": "app list",
        "ps": "app list",
        "remove": "app rm",
        "top": "top",
    },
    "image": {
        "df": "system df",
        "import": "image fetch",
        "inspect": "image cat-manifest",
        "load": "image fetch",
        "ls": "image list",
        "prune": "image gc",
        "pull": "image fetch",
        "remove": "image rm",
        "save": "image export",
    },
    "volume": {
        "list": "volume ls",
        "remove": "volume rm",
    },
}
"""By the group: the word, and the words after `minit` that do the same or come nearest."""

ABSENT: dict[str, str] = {
    "api-service": "list, status, events and app stats have JSON",
    "checkpoint": "pods are not frozen to files",
    "config": "paths are options",
    "login": "skopeo login keeps credentials",
    "logout": "skopeo logout forgets credentials",
    "metadata-service": "apps find out about themselves by their environment",
    "network": "networks are files in net.d of the local configuration",
    "push": "skopeo pushes images",
    "restore": "pods are not frozen to files",
    "search": "skopeo knows registries",
    "tag": "an image has the name in its manifest, of export --name",
    "trust": "minit verifies no signatures",
}
"""Words that nothing of minit's stands for, and the reason or the way round."""


INSTEAD_OF_FLAGS: dict[str, str] = {
    "--add-host": "--hosts-entry",
    "--cap-add": "--caps-retain",
    "--cap-drop": "--caps-remove",
    "--cidfile": "--uuid-file-save",
    "--cpus": "--cpu",
    "--entrypoint": "--exec",
    "--env": "--environment",
    "--env-file": "--set-env-file",
    "--env-host": "--inherit-env",
    "--group-add": "--supplementary-gids",
    "--label": "--user-label",
    "--network": "--net",
    "--pids-limit": "--annotation=minit/pids-limit=",
    "--publish": "--port",
    "--pull": "--pull-policy",
    "--read-only": "--readonly-rootfs",
    "--restart": "--annotation=minit/restart=",
    "--stop-signal": "--annotation=minit/stop-signal=",
    "--stop-timeout": "--annotation=minit/stop-grace=",
    "--tty": "--interactive",
    "--userns": "--private-users",
    "--workdir": "--working-dir",
    "-d": "--detach",
    "-e": "--environment",
    "-f": "--force",
    "-i": "--interactive",
    "-it": "--interactive",
    "-l": "--user-label",
    "-m": "--memory",
    "-n": "--tail",
    "-p": "--port",
    "-q": "--quiet",
    "-t": "--interactive",
    "-u": "--user",
    "-w": "--working-dir",
}
"""Flags of docker's and podman's, and the one of minit that does the same or comes nearest, where a command has it."""

_OF_MACHINES = frozenset({"rollback", "status", "update"})
"""Words of `minit init` on a machine that minit boots."""


def answer_flag(flag: str, flags: Container[str]) -> str:
    """Return what an error says behind an unknown flag of a command with these flags; nothing for most."""
    instead = INSTEAD_OF_FLAGS.get(flag, "")
    return f", use {instead}" if instead.partition("=")[0] in flags else ""


def answer(group: str, word: str, commands: Container[str]) -> str:
    """
    Return what an error says behind an unknown word of a group with these commands, `minit` or one below it.

    It is nothing for most, and for the command of a machine, which runs no other pods.
    """
    if group == "minit" and "run" not in commands:
        return ""
    instead = INSTEAD.get(group, {}).get(word)
    if instead is not None:
        return f", use minit {instead}"
    if group == "init" and word in _OF_MACHINES:
        return ": only machines that minit boots have it"
    return f": {ABSENT[word]}" if group == "minit" and word in ABSENT else ""
