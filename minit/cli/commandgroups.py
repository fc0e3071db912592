"""The commands of `minit`, in the order of the help; a command is imported when called."""

from __future__ import annotations

import click

from minit.cli.grammar import CommandTable, Listing, MinitGroup

_RUNNING = "Running pods"
_MANAGING = "Managing pods"
_IMAGES = "Images"
_NETWORKS = "Networks"
_VOLUMES = "Volumes"
_OTHER = "Other"

COMMANDS = {
    "run": Listing(
        place="commands.runcommands:run",
        help="Run images in a new pod, in the foreground.",
        section=_RUNNING,
    ),
    "prepare": Listing(
        place="commands.runcommands:prepare",
        help="Make a pod to be run later; print its UUID.",
        section=_RUNNING,
    ),
    "run-prepared": Listing(
        place="commands.runcommands:run_prepared",
        help="Run a pod that prepare made, in the foreground.",
        section=_RUNNING,
    ),
    "enter": Listing(
        place="commands.appcommands:enter",
        help="Run a command, by default /bin/bash, in an app of a running pod.",
        section=_RUNNING,
    ),
    "app": Listing(
        place="commandgroups:app_group",
        help="Make a pod whose apps come and go, and work with the apps of a running pod.",
        section=_RUNNING,
    ),
    "attach": Listing(
        place="commands.outputcommands:attach",
        help="Attach to an app of a running pod whose streams have the modes stream or tty.",
        section=_RUNNING,
    ),
    "play": Listing(
        place="commands.kubecommands:play",
        help="Run the Pods of a Kubernetes YAML file, and those of its Deployments, DaemonSets and Jobs; "
        "`-` is standard input.",
        section=_RUNNING,
    ),
    "compose": Listing(
        place="commands.composecommands:compose_group",
        help="Run the services of compose files as pods.",
        section=_RUNNING,
    ),
    "cri": Listing(
        place="commands.cricommand:cri",
        help="Serve a kubelet: the Container Runtime Interface, v1 and v1alpha2, on a socket.",
        section=_RUNNING,
    ),
    "list": Listing(
        place="commands.podcommands:list_pods",
        help="List pods.",
        section=_MANAGING,
    ),
    "status": Listing(
        place="commands.podcommands:status",
        help="Show the state of a pod and the exit codes of its apps.",
        section=_MANAGING,
    ),
    "cat-manifest": Listing(
        place="commands.podcommands:cat_manifest",
        help="Print the manifest of a pod.",
        section=_MANAGING,
    ),
    "stop": Listing(
        place="commands.podcommands:stop",
        help="Stop running pods.",
        section=_MANAGING,
    ),
    "start": Listing(
        place="commands.runcommands:start",
        help="Start pods again that have ended, in the background; print their UUIDs when they are ready.",
        section=_MANAGING,
    ),
    "restart": Listing(
        place="commands.runcommands:restart",
        help="Stop pods, and start them again; print their UUIDs when they are ready.",
        section=_MANAGING,
    ),
    "upgrade": Listing(
        place="commands.runcommands:upgrade",
        help="Give running pods the present version of minit, or another one, while their apps go on.",
        section=_MANAGING,
    ),
    "kill": Listing(
        place="commands.endingcommands:kill",
        help="Send a signal to the apps of running pods.",
        section=_MANAGING,
    ),
    "rename": Listing(
        place="commands.podcommands:rename",
        help="Give a pod a name, or another one.",
        section=_MANAGING,
    ),
    "rm": Listing(
        place="commands.endingcommands:remove",
        help="Remove pods that do not run, with all their files.",
        section=_MANAGING,
    ),
    "release": Listing(
        place="commands.endingcommands:release",
        help="Give back the networks, addresses and ports of pods that have ended.",
        section=_MANAGING,
    ),
    "gc": Listing(
        place="commands.endingcommands:gc",
        help="Remove pods that exited, were never run, or were never finished.",
        section=_MANAGING,
    ),
    "top": Listing(
        place="commands.topcommand:top",
        help="Show what the apps of all running pods use, the busiest first, and go on doing so.",
        section=_MANAGING,
    ),
    "stats": Listing(
        place="commands.statscommand:stats",
        help="Show what the apps of running pods use: processors, memory, processes, block devices and networks.",
        section=_MANAGING,
    ),
    "diagnose": Listing(
        place="commands.diagnosecommand:diagnose",
        help="Show why a pod does not do what it should, and everything that is known about it.",
        section=_MANAGING,
    ),
    "export": Listing(
        place="commands.filecommands:export",
        help="Make an image of an app of a pod that exited, with everything the app changed.",
        section=_MANAGING,
    ),
    "cp": Listing(
        place="commands.filecommands:copy",
        help="Copy files into an app of a pod, or out of it, while it runs or when it has ended.",
        section=_MANAGING,
    ),
    "diff": Listing(
        place="commands.filecommands:diff",
        help="Show the files that an app has added (A), changed (C) or deleted (D) since its image.",
        section=_MANAGING,
    ),
    "port": Listing(
        place="commands.podcommands:port",
        help="Show the ports of the host that lead to a running pod, or to one port of it, by its number or name.",
        section=_MANAGING,
    ),
    "logs": Listing(
        place="commands.outputcommands:logs",
        help="Show what the apps of a pod have written, also after it exited.",
        section=_MANAGING,
    ),
    "events": Listing(
        place="commands.outputcommands:events",
        help="Show what happened in a pod, also after it exited.",
        section=_MANAGING,
    ),
    "build": Listing(
        place="commands.buildcommand:build_image",
        help="Build an app image of a Containerfile, of files of this machine, or of another image.",
        section=_IMAGES,
    ),
    "fetch": Listing(
        place="commands.imagecommands:fetch",
        help="Import images into the store and print their ids.",
        section=_IMAGES,
    ),
    "push": Listing(
        place="commands.imagecommands:push",
        help="Bring an image of the store to a registry, and print its name and digest there.",
        section=_IMAGES,
    ),
    "tag": Listing(
        place="commands.imagecommands:tag",
        help="Give an image of the store more names.",
        section=_IMAGES,
    ),
    "image": Listing(
        place="commandgroups:image_group",
        help="Build images, and manage those of the store.",
        section=_IMAGES,
    ),
    "stage1": Listing(
        place="commands.imagecommands:stage1_group",
        help="Build minit's stage1 image.",
        section=_IMAGES,
    ),
    "trust": Listing(
        place="commands.trustcommands:trust_group",
        help="Manage the keys that may sign images.",
        section=_IMAGES,
    ),
    "generate": Listing(
        place="commandgroups:generate_group",
        help="Write pods down for others.",
        section=_OTHER,
    ),
    "network": Listing(
        place="commandgroups:network_group",
        help="Manage networks that pods join by name.",
        section=_NETWORKS,
    ),
    "volume": Listing(
        place="commandgroups:volume_group",
        help="Manage named volumes, which outlive the pods that mount them.",
        section=_VOLUMES,
    ),
    "system": Listing(
        place="commandgroups:system_group",
        help="Show what takes room, and remove what nobody needs.",
        section=_OTHER,
    ),
    "unshare": Listing(
        place="commands.runcommands:unshare",
        help="Run a command, by default $SHELL, as root of the user's namespace, where files of pods can be changed.",
        section=_OTHER,
    ),
    "version": Listing(
        place="commands.imagecommands:version",
        help="Print the versions of minit and of what it runs on.",
        section=_OTHER,
    ),
    "init": Listing(
        place="commands.initcommands:init_group",
        help="Build machines that minit boots, without any other system in them.",
        section=_IMAGES,
    ),
    "completion": Listing(
        place="completion:completion",
        help="Print what makes a shell complete command lines.",
        section=_OTHER,
    ),
    "help": Listing(
        place="commands.helpcommand:show_help",
        help="Show what a command does and how it is called, as its --help does.",
        section=_OTHER,
    ),
}
APP_COMMANDS = {
    "sandbox": Listing(
        place="commands.sandboxcommands:sandbox",
        help="Start a pod without apps, which are added to it while it runs.",
    ),
    "add": Listing(
        place="commands.sandboxcommands:add",
        help="Put an image as an app into a pod made by app sandbox.",
    ),
    "start": Listing(
        place="commands.appcommands:start",
        help="Start an app that was added to a pod, or one that has exited; one that runs goes on.",
    ),
    "stop": Listing(
        place="commands.appcommands:stop",
        help="Stop an app of a pod, and return when it has stopped; one that does not run is no error.",
    ),
    "pause": Listing(
        place="commands.appcommands:pause",
        help="Freeze all processes of an app of a running pod; a paused app stays so.",
    ),
    "resume": Listing(
        place="commands.appcommands:resume",
        help="Thaw the processes of a paused app; an app that runs goes on.",
    ),
    "rm": Listing(
        place="commands.appcommands:remove",
        help="Remove an app from a pod with all its files, and stop it first if it runs.",
    ),
    "update": Listing(
        place="commands.appcommands:update",
        help="Change limits of an app while its pod runs.",
    ),
    "exec": Listing(
        place="commands.appcommands:execute",
        help="Run a command, by default /bin/bash, in an app of a running pod; the same as `minit enter`.",
    ),
    "stats": Listing(
        place="commands.statscommand:stats",
        help="Show what the apps of running pods use: processors, memory, processes, block devices and networks.",
    ),
    "list": Listing(
        place="commands.appviewcommands:list_apps",
        help="List the apps of a pod and their states.",
    ),
    "status": Listing(
        place="commands.appviewcommands:status",
        help="Show the state of an app of a pod, its times, its exit code and its volumes.",
    ),
}
COMPOSE_COMMANDS = {
    "up": Listing(
        place="commands.composecommands:up",
        help="Make and start the pods of services, with those that they depend on.",
    ),
    "down": Listing(
        place="commands.composecommands:down",
        help="Stop and remove the pods of the project, or of some services.",
    ),
    "ps": Listing(
        place="commands.composecommands:ps",
        help="List the pods of the project, or of some services.",
    ),
    "logs": Listing(
        place="commands.composecommands:logs",
        help="Show what the services have written.",
    ),
    "exec": Listing(
        place="commands.composecommands:execute",
        help="Run a command in a running service.",
    ),
    "run": Listing(
        place="commands.composecommands:run",
        help="Run a command as a pod of a service.",
    ),
    "stop": Listing(
        place="commands.composecommands:stop",
        help="Stop the pods of services, each before those that it depends on.",
    ),
    "start": Listing(
        place="commands.composecommands:start",
        help="Start the pods of services again that have ended.",
    ),
    "restart": Listing(
        place="commands.composecommands:restart",
        help="Stop the pods of services, and start them again.",
    ),
    "pull": Listing(
        place="commands.composecommands:pull",
        help="Fetch the images of services again.",
    ),
    "build": Listing(
        place="commands.composecommands:build_images",
        help="Build the images of services.",
    ),
    "config": Listing(
        place="commands.composecommands:config",
        help="Print the project's files as one.",
    ),
}
_IMAGE_COMMANDS = {
    "fetch": COMMANDS["fetch"],
    "push": COMMANDS["push"],
    "tag": COMMANDS["tag"],
    "build": COMMANDS["build"],
    "list": Listing(
        place="commands.storecommands:list_images",
        help="List the images of the store.",
        section=_IMAGES,
    ),
    "rm": Listing(
        place="commands.storecommands:remove_images",
        help="Remove names of images from the store, and images with their last name; pods that use them stay.",
        section=_IMAGES,
    ),
    "gc": Listing(
        place="commands.storagecommands:collect_unused",
        help="Remove unpacked images that no pod refers to, and images that were not used for some time.",
        section=_IMAGES,
    ),
    "cat-manifest": Listing(
        place="commands.storecommands:cat_image_manifest",
        help="Print the manifest of an image of the store.",
        section=_IMAGES,
    ),
    "inspect": Listing(
        place="commands.storecommands:inspect",
        help="Print the names, digests, layers and configuration of an image of the store as JSON.",
        section=_IMAGES,
    ),
    "export": Listing(
        place="commands.storecommands:export",
        help="Write an image of the store to an uncompressed ACI file, or in a format of OCI or docker.",
        section=_IMAGES,
    ),
    "extract": Listing(
        place="commands.storecommands:extract",
        help="Unpack the archive of an image of the store, without its dependencies, to a directory.",
        section=_IMAGES,
    ),
    "render": Listing(
        place="commands.storecommands:render",
        help="Unpack an image of the store to a directory as apps see it, with all its dependencies.",
        section=_IMAGES,
    ),
    "verify": Listing(
        place="commands.storecommands:verify",
        help="Check that images of the store, packed and unpacked, are what they were.",
        section=_IMAGES,
    ),
}
_SYSTEM_COMMANDS = {
    "df": Listing(
        place="commands.storagecommands:df",
        help="Show the room that images, layers, unpacked images, pods, volumes and caches take, and what could "
        "be reclaimed.",
    ),
    "prune": Listing(
        place="commands.storagecommands:prune",
        help="Remove pods that have ended, and the images, packed and unpacked, that no other pod has.",
    ),
    "uninstall": Listing(
        place="commands.storagecommands:uninstall",
        help="Remove all that minit has made on this machine outside its package.",
    ),
}
_GENERATE_COMMANDS = {
    "kube": Listing(
        place="commands.kubecommands:kube",
        help="Print a pod as the YAML of a Kubernetes Pod, of which play makes an equal one.",
    ),
    "systemd": Listing(
        place="commands.kubecommands:systemd",
        help="Print a unit of systemd that starts a pod from boot on.",
    ),
    "openrc": Listing(
        place="commands.kubecommands:openrc",
        help="Print a script of OpenRC that starts a pod from boot on.",
    ),
    "quadlet": Listing(
        place="commands.kubecommands:quadlet",
        help="Print a pod as a quadlet, for a machine with podman.",
    ),
}
_NETWORK_COMMANDS = {
    "create": Listing(
        place="commands.networkcommands:create",
        help="Make a network for pods.",
    ),
    "ls": Listing(
        place="commands.networkcommands:list_configured",
        help="List the networks of the host's directories, with the number of pods on them.",
    ),
    "inspect": Listing(
        place="commands.networkcommands:inspect",
        help="Show networks with subnets, options, labels and pods, as JSON.",
    ),
    "rm": Listing(
        place="commands.networkcommands:remove_created",
        help="Remove created networks that no running pod has, with their bridges.",
    ),
    "prune": Listing(
        place="commands.networkcommands:prune_created",
        help="Remove all created networks that no pod has, running or not.",
    ),
}
_VOLUME_COMMANDS = {
    "create": Listing(
        place="commands.storagecommands:create_named",
        help="Make named volumes; one that there is already stays as it is.",
    ),
    "ls": Listing(
        place="commands.storagecommands:list_named",
        help="List the named volumes, with the number of pods that have them and the place of their files.",
    ),
    "rm": Listing(
        place="commands.storagecommands:remove_named",
        help="Remove named volumes that no pod has, running or not, with all their files.",
    ),
    "prune": Listing(
        place="commands.storagecommands:prune_named",
        help="Remove all named volumes that no pod has, running or not, with all their files.",
    ),
}


_INIT = (
    "minit [--group] [--session] [--parent-death=SIGNAL] -- PROGRAM [ARG]... is the init of a container that has none:"
    " it runs the program, passes signals on to it, reaps what it leaves, and exits with its code."
)


@click.group(cls=MinitGroup, name="minit", commands=CommandTable(COMMANDS), epilog=_INIT)
def commands() -> None:
    """Run pods of apps without systemd, on rkt's directories and with rkt's command line."""


app_group = MinitGroup("app", commands=CommandTable(APP_COMMANDS))
image_group = MinitGroup("image", commands=CommandTable(_IMAGE_COMMANDS))
generate_group = MinitGroup("generate", commands=CommandTable(_GENERATE_COMMANDS))
volume_group = MinitGroup("volume", commands=CommandTable(_VOLUME_COMMANDS))
network_group = MinitGroup("network", commands=CommandTable(_NETWORK_COMMANDS))
system_group = MinitGroup("system", commands=CommandTable(_SYSTEM_COMMANDS))
