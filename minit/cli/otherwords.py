"""
Words of docker's, podman's, kubectl's and rkt's that minit does not have, and minit's words instead.

Read where a command is unknown. docs/comparison.md has the same words with more about each; tests compare them with it
and with the commands that there are.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

INSTEAD: dict[str, str] = {
    "app attach": "attach",
    "app kill": "app stop",
    "app logs": "logs",
    "app ls": "app list",
    "app ps": "app list",
    "app remove": "app rm",
    "app restart": "app start",
    "app top": "top",
    "apply": "play",
    "build": "image build",
    "builder build": "image build",
    "builder prune": "image gc",
    "buildx build": "image build",
    "buildx du": "system df",
    "buildx prune": "image gc",
    "commit": "export",
    "container attach": "attach",
    "container commit": "export",
    "container cp": "cp",
    "container create": "prepare",
    "container diff": "diff",
    "container exec": "enter",
    "container exists": "status",
    "container export": "export",
    "container inspect": "status --format=json",
    "container kill": "stop --force",
    "container list": "list",
    "container logs": "logs",
    "container ls": "list",
    "container mount": "cp",
    "container pause": "app pause",
    "container port": "port",
    "container prune": "gc",
    "container ps": "list",
    "container rename": "rename",
    "container restart": "start",
    "container rm": "rm",
    "container run": "run",
    "container start": "start",
    "container stats": "app stats",
    "container stop": "stop",
    "container top": "top",
    "container unpause": "app resume",
    "container update": "app update",
    "container wait": "status --wait",
    "create": "prepare",
    "debug": "enter",
    "delete": "rm",
    "describe": "status",
    "df": "system df",
    "down": "play",
    "exec": "enter",
    "exists": "status",
    "generate kubernetes": "generate kube",
    "generate spec": "cat-manifest",
    "get": "list",
    "healthcheck run": "status",
    "history": "image cat-manifest",
    "image df": "system df",
    "image exists": "image cat-manifest",
    "image history": "image cat-manifest",
    "image import": "image fetch",
    "image inspect": "image cat-manifest",
    "image load": "image fetch",
    "image ls": "image list",
    "image mount": "image render",
    "image prune": "image gc",
    "image pull": "image fetch",
    "image remove": "image rm",
    "image save": "image export",
    "image tree": "image cat-manifest",
    "images": "image list",
    "import": "fetch",
    "info": "version",
    "inspect": "status --format=json",
    "kill": "stop --force",
    "kube apply": "play",
    "kube down": "play --down",
    "kube generate": "generate kube",
    "kube play": "play",
    "load": "fetch",
    "ls": "list",
    "mount": "image render",
    "pause": "app pause",
    "pod create": "app sandbox",
    "pod exists": "status",
    "pod inspect": "status --format=json",
    "pod kill": "stop --force",
    "pod list": "list",
    "pod logs": "logs",
    "pod ls": "list",
    "pod pause": "app pause",
    "pod prune": "gc",
    "pod ps": "list",
    "pod restart": "start",
    "pod rm": "rm",
    "pod start": "start",
    "pod stats": "app stats",
    "pod stop": "stop",
    "pod top": "top",
    "pod unpause": "app resume",
    "prune": "system prune",
    "ps": "list",
    "pull": "fetch",
    "remove": "rm",
    "replace": "play",
    "restart": "start",
    "rmi": "image rm",
    "save": "image export",
    "shell": "enter",
    "stats": "app stats",
    "system events": "events",
    "system info": "version",
    "unpause": "app resume",
    "update": "app update",
    "volume list": "volume ls",
    "volume remove": "volume rm",
    "volumes": "volume ls",
    "wait": "status --wait",
}
"""Words of a command line, a group's included, and the words after `minit` that do the same or come nearest."""

_OF_A_CLUSTER = "a cluster's API server has it, and minit is a node's runtime"
_NO_CHECKPOINTS = "pods are not frozen to files"
_NO_SWARM = "several machines are Kubernetes' work: minit cri serves a node"

ABSENT: dict[str, str] = {
    "api-resources": _OF_A_CLUSTER,
    "api-service": "list, status, events and app stats have JSON",
    "api-versions": _OF_A_CLUSTER,
    "auth": _OF_A_CLUSTER,
    "auto-update": "fetch renews an image, run --replace the pod",
    "autoscale": _OF_A_CLUSTER,
    "certificate": _OF_A_CLUSTER,
    "checkpoint": _NO_CHECKPOINTS,
    "cluster-info": _OF_A_CLUSTER,
    "config": "paths are options",
    "container": "the words behind it follow minit itself, as in minit list",
    "container checkpoint": _NO_CHECKPOINTS,
    "container cleanup": "gc cleans up behind ended pods",
    "container clone": "run makes another pod of the same options",
    "container init": "run-prepared starts what prepare made",
    "container restore": _NO_CHECKPOINTS,
    "container runlabel": "a command line of an image is not run",
    "context": "there is no daemon to choose; --dir names the data directory",
    "cordon": _OF_A_CLUSTER,
    "drain": _OF_A_CLUSTER,
    "edit": "rm the pod, change the file, and play it again",
    "explain": "docs/kubernetes.md has the fields",
    "expose": "run --port leads to a pod, Services are a cluster's",
    "image convert": "layers are read in all compressions",
    "image scp": "image export writes a file for any way to another machine",
    "image search": "skopeo knows registries",
    "image sign": "minit makes no signatures",
    "kustomize": "minit play - runs what kubectl kustomize prints",
    "login": "skopeo login keeps credentials",
    "logout": "skopeo logout forgets credentials",
    "machine": "minit needs no machine around it",
    "manifest": "fetch takes the image of this processor out of a list, and --arch names another",
    "metadata-service": "apps find out about themselves by their environment",
    "namespace": "pods of another --dir are apart from these",
    "network": "networks are files in net.d of the local configuration",
    "node": _NO_SWARM,
    "patch": "rm the pod, change the file, and play it again",
    "plugin": "plugins of networks are programs of the CNI, and there are no others",
    "pod": "the words behind it follow minit itself, as in minit list",
    "port-forward": "run --port leads to a pod, and pods have addresses: minit list shows them",
    "proxy": _OF_A_CLUSTER,
    "push": "skopeo pushes images",
    "restore": _NO_CHECKPOINTS,
    "rollout": _OF_A_CLUSTER,
    "scale": _OF_A_CLUSTER,
    "search": "skopeo knows registries",
    "secret": "a secret is a file: run --volume mounts it, and play takes Secrets",
    "service": _NO_SWARM,
    "set": "rm the pod, change the file, and play it again",
    "stack": _NO_SWARM,
    "swarm": _NO_SWARM,
    "system connection": "there is no daemon to choose; --dir names the data directory",
    "system migrate": "pods of older versions run on",
    "system renumber": "pods have no numbers of locks",
    "system reset": "system prune --all removes what no pod has",
    "system service": "list, status, events and app stats have JSON",
    "tag": "an image has the name in its manifest, of export --name",
    "taint": _OF_A_CLUSTER,
    "trust": "minit verifies no signatures",
    "uncordon": _OF_A_CLUSTER,
    "unmount": "image render makes a directory, and nothing is mounted",
    "unshare": "minit runs as root",
    "untag": "an image has the name in its manifest",
    "volume export": "tar reads the directory that volume ls --format=json shows",
    "volume import": "tar fills the directory that volume ls --format=json shows",
    "volume inspect": "volume ls --format=json has all of every volume",
    "volume mount": "volume ls --format=json shows the directory",
    "volume reload": "volumes have no drivers",
    "volume unmount": "volume ls --format=json shows the directory, and nothing is mounted",
    "volume update": "volumes have no drivers",
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


def answer(group: str, words: Sequence[str], commands: Container[str]) -> str:
    """
    Return the part of an error behind an unknown word of a group with these commands, `minit` or a group below.

    The word begins `words`; the words behind tell `container ls` from `container rm`. The part is empty for most
    words, and for the command of a machine, which runs no other pods.
    """
    if group == "minit" and "run" not in commands:
        return ""
    if group == "init" and words[0] in _OF_MACHINES:
        return ": only machines that minit boots have it"
    before = [] if group == "minit" else [group]
    for length in (2 - len(before), 1):
        phrase = " ".join((*before, *words[:length]))
        if phrase in INSTEAD:
            return f", use minit {INSTEAD[phrase]}"
        if phrase in ABSENT:
            return f": {ABSENT[phrase]}"
    return ""
