"""The words of `app add` for a ContainerConfig, and its environment."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from minit.base.idrange import IdRange
from minit.cri.api import cri_pb2 as api
from minit.cri.node import app_name
from minit.cri.translation.mountwords import mount_words
from minit.cri.translation.refusal import refuse
from minit.cri.translation.resourcewords import resource_words
from minit.cri.translation.securitywords import security_words
from minit.cri.translation.userwords import check_users
from minit.manifest.annotations import Annotation
from minit.manifest.names import is_variable_name

# What other runtimes do.
_HABITS = (
    Annotation.LATE_EXECUTABLE,
    Annotation.MAKE_WORKING_DIRECTORY,
    Annotation.PLAIN_ENVIRONMENT,
    Annotation.VOLUMES_OVER_FILES,
)


def container_words(
    config: api.ContainerConfig,
    image: str,
    more: Sequence[str] = (),
    target: str | None = None,
    ids: IdRange | None = None,
    *,
    image_has_group: bool = False,
) -> list[str]:
    """
    Return what `app add` is given for a container after the pod, with `more` words; CallError if it cannot be
    made.

    `target` is the app of the container that `target_id` names, None if there is none in the sandbox. `ids` are those
    of the sandbox, if it has users of its own. `image_has_group` tells that the image names a group beside its user.
    """
    words = [image, f"--name={app_name(config.metadata)}", *more]
    words += [f"--annotation={name}=true" for name in _HABITS]
    refuse(bool(config.working_dir) and not config.working_dir.startswith("/"), "working_dir", "an absolute path")
    # By its text, as with other runtimes: what is before a .. need not be there.
    words += [f"--working-dir={posixpath.normpath(f'/./{config.working_dir}')}"] if config.working_dir else []
    check_users(config.linux.security_context.namespace_options, ids)
    words += mount_words(config.mounts, config.devices, ids, privileged=config.linux.security_context.privileged)
    mode = "tty" if config.tty else "stream"
    words += [f"--stdin={mode}"] if config.stdin or config.tty else []
    words += [f"--stdout=log+{mode}", f"--stderr=log+{mode}"]
    words += _stop_words(config.stop_signal)
    words += resource_words(config.linux.resources)
    words += security_words(config.linux.security_context, target, image_has_group=image_has_group)
    if not config.command and not config.args:
        return words
    # A command stands in for entrypoint and command of the image, arguments alone for the command.
    first, *rest = [*config.command, *config.args]
    refuse(not first, "command" if config.command else "args", "a program")
    return [*words, f"{'--exec' if config.command else '--cmd'}={first}", "--", *rest]


def log_words(directory: str, path: str) -> list[str]:
    """Return what `app add` is given for a log below the sandbox's directory; CallError if it would be elsewhere."""
    if not directory or not path:
        return []
    path = posixpath.normpath(path)
    refuse(path.split("/")[0] in ("", ".", ".."), "log_path", "a path below log_directory")
    return [f"--annotation={Annotation.LOG_PATH}={path}"]


def environment_text(config: api.ContainerConfig, hostname: str = "") -> bytes:
    """
    Return the environment as a file of `--set-env-file`, in which the last of several of a name counts.

    A `hostname` is that of a variable HOSTNAME, as other runtimes have it, if nothing else sets that.
    """
    variables = {"HOSTNAME": hostname.encode()} if hostname else {}
    variables |= {one.key: one.value for one in config.envs}
    for name, value in variables.items():
        refuse(not is_variable_name(name), f"envs: {name}", "a name of printable ASCII without =")
        refuse(b"\0" in value, f"envs: {name}", "a value without a NUL")
    return b"".join(name.encode() + b"=" + value + b"\0" for name, value in variables.items())


def _stop_words(number: api.Signal) -> list[str]:
    if number == api.SIGNAL_RUNTIME_DEFAULT:
        return []
    name = api.Signal.Name(number).removeprefix("SIGNAL_SIG")
    return [f"--annotation={Annotation.STOP_SIGNAL}={name.replace('PLUS', '+').replace('MINUS', '-')}"]
