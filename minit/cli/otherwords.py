"""
Words and flags of docker, podman, kubectl, nerdctl and rkt that minit lacks, and the answer to each.

The command reads the tables where a word or a flag is unknown. A test types every row.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

INSTEAD: dict[str, str] = {
    "app attach": "attach",
    "app kill": "kill",
    "app logs": "logs",
    "app ls": "app list",
    "app ps": "app list",
    "app remove": "app rm",
    "app restart": "app start",
    "app top": "top",
    "apply": "play",
    "builder build": "image build",
    "builder prune": "image gc",
    "buildx build": "image build",
    "buildx du": "system df",
    "buildx prune": "image gc",
    "commit": "export --format=oci-archive",
    "container attach": "attach",
    "container commit": "export --format=oci-archive",
    "container cp": "cp",
    "container create": "prepare",
    "container diff": "diff",
    "container exec": "enter",
    "container exists": "status",
    "container export": "export",
    "container inspect": "status --format=json",
    "container kill": "kill",
    "container list": "list",
    "container logs": "logs",
    "container ls": "list",
    "container mount": "cp",
    "container pause": "app pause",
    "container port": "port",
    "container prune": "gc",
    "container ps": "list",
    "container rename": "rename",
    "container restart": "restart",
    "container rm": "rm",
    "container run": "run",
    "container start": "start",
    "container stats": "stats",
    "container stop": "stop",
    "container top": "top",
    "container unpause": "app resume",
    "container update": "app update",
    "container wait": "status --wait",
    "create": "prepare",
    "debug": "enter",
    "delete": "rm",
    "delete --filename": "play --down",
    "delete -f": "play --down",
    "describe": "status",
    "df": "system df",
    "down": "play",
    "exec": "enter",
    "exists": "status",
    "generate kubernetes": "generate kube",
    "generate spec": "cat-manifest",
    "get": "list",
    "healthcheck run": "status",
    "history": "image inspect",
    "image df": "system df",
    "image exists": "image cat-manifest",
    "image history": "image inspect",
    "image import": "image fetch",
    "image load": "image fetch",
    "image ls": "image list",
    "image mount": "image render",
    "image prune": "image gc",
    "image pull": "image fetch",
    "image remove": "image rm",
    "image save": "image export --format=oci-archive",
    "image untag": "image rm",
    "image tree": "image cat-manifest",
    "images": "image list",
    "import": "fetch",
    "info": "version",
    "inspect": "status --format=json",
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
    "pod kill": "kill",
    "pod list": "list",
    "pod logs": "logs",
    "pod ls": "list",
    "pod pause": "app pause",
    "pod prune": "gc",
    "pod ps": "list",
    "pod restart": "restart",
    "pod rm": "rm",
    "pod start": "start",
    "pod stats": "stats",
    "pod stop": "stop",
    "pod top": "top",
    "pod unpause": "app resume",
    "prune": "system prune",
    "ps": "list",
    "pull": "fetch",
    "remove": "rm",
    "replace": "play",
    "rmi": "image rm",
    "save": "image export --format=oci-archive",
    "shell": "enter",
    "system events": "events",
    "system info": "version",
    "system reset": "system uninstall --data",
    "unpause": "app resume",
    "update": "app update",
    "volume list": "volume ls",
    "volume remove": "volume rm",
    "volumes": "volume ls",
    "untag": "image rm",
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
    "network connect": "a pod has its networks from the start: run --net joins several",
    "network disconnect": "a pod has its networks from the start: run --net joins several",
    "network reload": "rm the network and create another: pods that run keep theirs",
    "network update": "rm the network and create another: pods that run keep theirs",
    "node": _NO_SWARM,
    "patch": "rm the pod, change the file, and play it again",
    "plugin": "plugins of networks are programs of the CNI, and there are no others",
    "pod": "the words behind it follow minit itself, as in minit list",
    "port-forward": "run --port leads to a pod, and pods have addresses: minit list shows them",
    "proxy": _OF_A_CLUSTER,
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
    "system service": "list, status, events and app stats have JSON",
    "taint": _OF_A_CLUSTER,
    "uncordon": _OF_A_CLUSTER,
    "unmount": "image render makes a directory, and nothing is mounted",
    "volume export": "tar reads the directory that volume ls --format=json shows",
    "volume import": "tar fills the directory that volume ls --format=json shows",
    "volume inspect": "volume ls --format=json has all of every volume",
    "volume mount": "volume ls --format=json shows the directory",
    "volume reload": "volumes have no drivers",
    "volume unmount": "volume ls --format=json shows the directory, and nothing is mounted",
    "volume update": "volumes have no drivers",
}
"""Words that nothing of minit's stands for, and the reason or the way round."""

INSTEAD_OF_FLAGS: dict[str, dict[str, str]] = {
    "run": {
        "--attach": "the streams of --stdin, --stdout and --stderr have the mode stream, for minit attach",
        "--blkio-weight": "no isolator limits disks",
        "--cgroup-parent": "--annotation=minit/cgroup-parent=",
        "--cpu-period": "--cpu",
        "--cpu-quota": "--cpu",
        "--detach-keys": "minit attach ends with its own keys",
        "--device-read-bps": "no isolator limits disks",
        "--device-write-bps": "no isolator limits disks",
        "--disable-content-trust": "--insecure-options=image",
        "--env-host": "--inherit-env",
        "--expose": "--port",
        "--gpus": "--device",
        "--ip": "--net",
        "--ip6": "--net",
        "--link": "apps of one pod reach each other at 127.0.0.1",
        "--log-driver": "minit logs reads the logs of every app",
        "--log-opt": "--annotation=minit/log-max-size=",
        "--mac-address": "--net",
        "--memory-reservation": "--memory",
        "--oom-kill-disable": "--oom-score-adj",
        "--pod": "minit app add adds an app to a running pod",
        "--privileged": "capabilities are named by --caps-retain, devices by --device",
        "--publish-all": "--port",
        "--rootfs": "image build makes an image of a directory",
        "--runtime": "--stage1-path",
        "--security-opt": "--seccomp",
        "--systemd": "apps run without systemd",
        "--uts": "a pod has a host name of its own: --hostname",
        "--volumes-from": "--volume",
        "-P": "--port",
        "-a": "the streams of --stdin, --stdout and --stderr have the mode stream, for minit attach",
    },
    "enter": {
        "--container": "--app",
        "--detach": "a shell's & puts the command in the background",
        "--namespace": "pods have no namespaces",
        "-c": "--app",
        "-d": "a shell's & puts the command in the background",
        "-n": "pods have no namespaces",
    },
    "play": {
        "--file": "the file stands alone, as in minit play web.yaml",
        "--filename": "the file stands alone, as in minit play web.yaml",
        "--force": "--replace",
        "--namespace": "pods have no namespaces",
        "--start": "pods are started at once; app sandbox makes a pod without apps",
        "-d": "--detach",
        "-f": "the file stands alone, as in minit play web.yaml",
        "-k": "minit play - runs what kubectl kustomize prints",
        "-n": "pods have no namespaces",
    },
    "list": {
        "--all": "ended pods are in the list already",
        "--all-namespaces": "pods have no namespaces",
        "--last": "the newest pods are the first: head -n takes some",
        "--latest": "the newest pod is the first; podman's --latest is not there",
        "--namespace": "pods have no namespaces",
        "--no-trunc": "--full",
        "--noheading": "--no-legend",
        "--output": "--format",
        "--size": "minit system df shows sizes",
        "--sort": "sort orders the lines of --no-legend",
        "--watch": "minit top and minit events go on",
        "-A": "pods have no namespaces",
        "-a": "ended pods are in the list already",
        "-l": "the newest pod is the first; podman's --latest is not there",
        "-n": "the newest pods are the first: head -n takes some",
        "-o": "--format",
        "-p": "UUIDs of pods are in the list already",
        "-s": "minit system df shows sizes",
        "-w": "minit top and minit events go on",
    },
    "status": {
        "--output": "--format",
        "--size": "minit system df shows sizes",
        "--type": "image cat-manifest and volume ls have the others",
        "-f": "--format",
        "-o": "--format",
        "-s": "minit system df shows sizes",
    },
    "logs": {
        "--container": "--app",
        "--latest": "the name of the pod is needed",
        "--names": "each line of several apps has the app's name",
        "--previous": "the log of an ended pod is shown without a flag",
        "-c": "--app",
        "-l": "the name of the pod is needed",
        "-p": "the log of an ended pod is shown without a flag",
    },
    "rm": {
        "--grace-period": "minit stop waits for apps to end",
        "--ignore": "a pod that is not there is an error",
        "--latest": "the name of the pod is needed",
        "--now": "--force",
        "--volumes": "named volumes stay: minit volume rm removes them",
        "-i": "a pod that is not there is an error",
        "-l": "the name of the pod is needed",
        "-v": "named volumes stay: minit volume rm removes them",
    },
    "stop": {
        "--grace-period": "--timeout",
        "--latest": "the name of the pod is needed",
        "-l": "the name of the pod is needed",
    },
    "": {
        "-f": "--force",
        "-l": "--user-label",
        "-n": "--tail",
    },
}
"""
By the command, or none for every command: a flag of another tool's, and the flag of minit that does the same or
comes nearest, or a sentence about it.
"""

_ALIKE = {"prepare": "run", "app add": "run", "app exec": "enter", "app stop": "stop", "app list": "list"}
"""Commands with the foreign flags of another command."""

_OF_MACHINES = frozenset({"rollback", "status", "update"})
"""Words of `minit init` on a machine that minit boots."""


def answer_flag(command: str, flag: str, flags: Container[str]) -> str:
    """Return the part of an error behind an unknown flag of a command with these flags; nothing for most."""
    for table in (INSTEAD_OF_FLAGS.get(_ALIKE.get(command, command), {}), INSTEAD_OF_FLAGS[""]):
        instead = table.get(flag, "")
        if instead and not instead.startswith("-"):
            return f": {instead}"
        if instead.partition("=")[0] in flags:
            return f", use {instead}"
    return ""


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
