"""Finding plugins and making requests of them, programs or built in, also requests of a plugin to another plugin."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import NoReturn

from minit.base import jsontext
from minit.base.errors import ManifestError, NetworkError, PluginError, describe
from minit.base.harmless import harmless
from minit.linux.forks import PLUGIN, fork
from minit.linux.loop import wait_readable
from minit.linux.messages import memory_file
from minit.linux.process import reset_signals
from minit.manifest.reader import Node
from minit.network import protocol
from minit.network.builtin import ask_builtin
from minit.network.builtin.call import Call
from minit.network.protocol import Request, Result, read_result, write_result
from minit.podfiles import paths

JsonObject = dict[str, object]

TIMEOUT_SECONDS = 60.0

# Of the reference plugins host-local and static, and all that make or change a link.
_KNOWN = frozenset(("IP", "GATEWAY", "MAC"))
_PERMISSION = "IgnoreUnknown"

_MAX_OUTPUT_BYTES = 1 << 20
_MAX_SHOWN = 1000  # characters of what a plugin printed that make it into a message
_UMASK = 0o022
_BLOCK_BYTES = 1 << 16

_VENDOR = f"/{paths.PLUGINS}"
_SYSTEM = ("/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni")


class PluginRequests:
    """
    Requests about an interface of a pod, or about none.

    `version` is the specification's version, `source` the file named by errors of a configuration. `variables` are more
    of the environment than the specification has. When the descriptor `cancelled` becomes readable, a running program
    is killed, as after its time limit; a built-in plugin gives up. `freed` is the field of a built-in plugin's call.
    """

    def __init__(
        self,
        search: PluginSearch,
        request: Request,
        version: str,
        source: str,
        *,
        variables: Mapping[str, str] | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        cancelled: int | None = None,
        freed: ExitStack | None = None,
    ) -> None:
        self._search = search
        self._request = request
        self._version = version
        self._source = source
        self._variables = variables or {}
        self._timeout_seconds = timeout_seconds
        self._cancelled = cancelled
        self._freed = freed

    def make(
        self, command: str, plugin_type: str, path: str, config: JsonObject, text: bytes | None = None
    ) -> JsonObject:
        """
        Make a request of the plugin at `path` and return the JSON object of the answer, an empty object but for ADD.

        A program reads `text`, if given, in the place of `config`. NetworkError has the plugin's words.
        """
        if self._search.is_built_in(plugin_type, path):
            return self.make_of_builtin(command, plugin_type, config)
        environment = self._environment(command, path)
        request = jsontext.dump(config) if text is None else text
        output = _run_plugin(path, request, environment, self._timeout_seconds, self._cancelled)
        return _parse_answer(output, plugin_type) if command == "ADD" else {}

    def make_of_builtin(self, command: str, plugin_type: str, config: JsonObject) -> JsonObject:
        """Make a request of a built-in plugin."""
        node = Node(config, None, self._source)
        call = Call(
            config=node,
            request=self._request,
            delegate=self._delegate,
            previous=self._read_previous(command, node["prevResult"]),
            cancelled=self._cancelled,
            freed=self._freed,
        )
        try:
            result = ask_builtin(command, plugin_type, call)
        except OSError as error:
            raise NetworkError(f'plugin "{plugin_type}": {describe(error)}') from error
        return write_result(result, self._version) if command == "ADD" else {}

    def read(self, written: object, plugin_type: str) -> Result:
        """Return the result in the answer of a plugin."""
        try:
            return read_result(written, f'result of plugin "{plugin_type}"', self._version)
        except ManifestError as error:
            raise NetworkError(str(error)) from error

    def _delegate(
        self, command: str, plugin_type: str, fields: Mapping[str, object], previous: Result | None
    ) -> Result:
        """Make a request of a plugin for another plugin (`Delegate`)."""
        config = {name: value for name, value in fields.items() if name.lower() != "prevresult"}
        if previous is not None:
            config["prevResult"] = write_result(previous, self._version)
        written = self.make(command, plugin_type, self._search.find(plugin_type), config)
        return self.read(written, plugin_type) if command == "ADD" else Result()

    def _read_previous(self, command: str, node: Node) -> Result | None:
        if not node.given:
            return None
        try:
            return read_result(node.raw(), node.where, self._version)
        except ManifestError:
            if command != "DEL":
                raise
            return None  # it deletes what it finds, as after the loss of a result

    def _environment(self, command: str, program: str) -> dict[str, str]:
        return {
            **os.environ,
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": self._request.container_id,
            "CNI_NETNS": self._request.namespace,
            "CNI_ARGS": tolerated(self._request.args),
            "CNI_IFNAME": self._request.interface,
            "CNI_PATH": self._search.environment_path(program),
            **self._variables,
        }


def _parse_answer(output: bytes, plugin_type: str) -> JsonObject:
    try:
        answer = jsontext.parse(output, "")
    except ManifestError:
        answer = None
    if not isinstance(answer, dict):
        line = _first_line(output)
        raise NetworkError(f'plugin "{plugin_type}" printed no result{": " if line else ""}{line}')
    return answer


def tolerated(args: str) -> str:
    """
    Return `args` with permission to ignore keys, which rkt's plugins did not need, if each key belongs to a plugin.

    A key that belongs to no plugin is left for the refusal: the user should notice an unfulfilled wish.
    """
    keys = {pair.partition("=")[0] for pair in args.split(";")}
    return f"{args};{_PERMISSION}=1" if keys <= _KNOWN else args


def _run_plugin(
    path: str, request: bytes, environment: Mapping[str, str], timeout_seconds: float, cancelled: int | None
) -> bytes:
    """
    Return the output of the plugin at `path` for `request`.

    The plugin runs in its own session and dies with this process; its standard error is the caller's. The plugin and
    its children are killed if it takes too long, prints too much, or `cancelled` becomes readable. NetworkError has the
    plugin's words in the CNI's form, or the way it ended if it printed none.
    """
    name = f'plugin "{os.path.basename(path)}"'
    # A process that ignores SIGCHLD is not told how a child ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        pid, output = _start(path, request, environment)
    except OSError as error:
        raise NetworkError(f"{name} cannot be executed: {path}: {describe(error)}") from error
    pidfd = -1
    ended = None
    try:
        pidfd = os.pidfd_open(pid)
        data = _read_output(name, output, pidfd, timeout_seconds, cancelled)
        ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    except OSError as error:
        raise NetworkError(f"{name}: {describe(error)}") from error
    finally:
        if ended is None:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(output)
        if pidfd >= 0:
            os.close(pidfd)
    assert ended is not None
    if ended.si_code != os.CLD_EXITED:
        raise NetworkError(f"{name} was killed by signal {ended.si_status}")
    if ended.si_status != 0:
        raise _own_error(data) or NetworkError(_exit_text(name, ended.si_status, data))
    return data


def _first_line(output: bytes) -> str:
    """Return the first line of a plugin's output in a form for messages."""
    lines = output.decode(errors="replace").split("\n")
    first = next((line.strip() for line in lines if line.strip()), "")
    return _printable(first)


def _start(path: str, request: bytes, environment: Mapping[str, str]) -> tuple[int, int]:
    """
    Start the plugin; return its pid and the descriptor of its output; OSError if the kernel cannot execute the plugin.
    """
    ours = []
    theirs = []
    try:
        # A file, not a pipe: nobody has to write while the plugin reads, and a plugin may read nothing.
        theirs.append(memory_file("request", request))
        for _ in ("output", "report"):
            reader, writer = os.pipe2(os.O_CLOEXEC)
            ours.append(reader)
            theirs.append(writer)
        request_end, output_end, report_end = theirs
        pid = fork(
            PLUGIN,
            lambda: _become_plugin(path, environment),
            {"request": request_end, "output": output_end, "report": report_end},
            tell=lambda error: _tell(report_end, error),
        )
        while theirs:
            os.close(theirs.pop())
        output, report = ours
        # The end of the file means that the plugin is executed.
        failure = os.read(report, 8)
        if failure:
            os.waitpid(pid, 0)
            raise OSError(int(failure), os.strerror(int(failure)))
        os.set_blocking(output, False)
        ours.remove(output)
        return pid, output
    finally:
        for fd in (*ours, *theirs):
            os.close(fd)


def _become_plugin(path: str, environment: Mapping[str, str]) -> NoReturn:
    os.umask(_UMASK)
    reset_signals()
    os.execve(path, [path], environment)


def _tell(report: int, error: BaseException) -> int:
    if isinstance(error, OSError):
        os.write(report, b"%d" % (error.errno or 0))
    return 1


def _read_output(name: str, output: int, pidfd: int, timeout_seconds: float, cancelled: int | None) -> bytes:
    """
    Return the output of the plugin, which has ended by then.

    A process left running by the plugin may keep the output open for ever, which does not matter here.
    """
    watched = {output, pidfd} if cancelled is None else {output, pidfd, cancelled}
    end = time.monotonic() + timeout_seconds
    data = b""
    while True:
        left = end - time.monotonic()
        events = wait_readable(watched, left) if left > 0 else ()
        if not events:
            raise NetworkError(f"{name} did not finish within {timeout_seconds:g} seconds")
        # Before the read: the last output before the plugin's end must not be missed.
        has_ended = pidfd in events
        if output in events or has_ended:
            block = _read_block(output)
            while block:
                data += block
                if len(data) > _MAX_OUTPUT_BYTES:
                    raise NetworkError(f"{name} printed more than {_MAX_OUTPUT_BYTES} bytes")
                block = _read_block(output)
            if block is not None and not has_ended:
                watched.remove(output)
        if has_ended:
            return data
        if cancelled in events:
            raise NetworkError(f"{name} was killed: the pod is not wanted any more")


def _read_block(fd: int) -> bytes | None:
    """Return the bytes to read, None if there are none yet, empty at the end of the file."""
    try:
        return os.read(fd, _BLOCK_BYTES)
    except BlockingIOError:
        return None


def _own_error(output: bytes) -> PluginError | None:
    """Return the error in the CNI's form that a plugin printed, None for other `output`."""
    try:
        error = jsontext.parse(output, "")
    except ManifestError:
        return None
    if not isinstance(error, dict) or not isinstance(error.get("msg"), str) or not error["msg"]:
        return None
    code, details = error.get("code"), error.get("details")
    return PluginError(
        _printable(error["msg"]),
        code if isinstance(code, int) and code > 0 else protocol.ANY_OTHER,
        _printable(details) if isinstance(details, str) else "",
    )


def _exit_text(name: str, code: int, output: bytes) -> str:
    line = _first_line(output)
    return f"{name} exited with code {code}{': ' if line else ''}{line}"


def _printable(text: str) -> str:
    line = harmless(" ".join(text.split()))
    return line if len(line) <= _MAX_SHOWN else line[: _MAX_SHOWN - 3] + "..."


class PluginSearch:
    """
    The search for plugins by type: in `directories`, then among built-in plugins, then in the directories `others`.

    `root` is the stage1 image, which has programs of the built-in plugins.
    """

    def __init__(self, directories: Sequence[str], root: str, others: Sequence[str] = ()) -> None:
        self.directories = tuple(directories)
        self.others = tuple(others)
        self._own = f"{root}/{paths.PLUGINS}"
        self._program = f"{root}/entrypoints/{paths.PLUGIN_ENTRYPOINT}"

    def find(self, plugin_type: str) -> str:
        """Return the path of a plugin's program; NetworkError if there is no such plugin."""
        found = _find_program(self.directories, plugin_type)
        if found is None and plugin_type in paths.BUILT_IN_PLUGINS:
            return f"{self._own}/{plugin_type}"
        found = found or _find_program(self.others, plugin_type)
        if found is None:
            raise NetworkError(f'Could not find plugin "{plugin_type}"')
        return found

    def is_built_in(self, plugin_type: str, path: str) -> bool:
        """
        Tell whether the plugin at `path` is called, not executed.

        In the image's directory the name alone decides. At a pod's removal the image may be gone, or have a file of the
        name from an intruder in the pod.
        """
        if plugin_type not in paths.BUILT_IN_PLUGINS:
            return False
        try:
            return os.path.dirname(path) == self._own or os.path.samefile(path, self._program)
        except OSError:
            return False

    def environment_path(self, program: str) -> str:
        """Return CNI_PATH for a program, in which the program finds plugins to delegate to."""
        is_first = os.path.dirname(program) in self.directories
        return ":".join(self.directories if is_first else (*self.directories, *self.others))


def search_for_pod(local_config: str, others: Sequence[str] = _SYSTEM) -> PluginSearch:
    """Return the search for a pod, whose directory is the working directory: rkt's directories come first."""
    directories = (f"{local_config}/net.d", _VENDOR, paths.POD_PLUGINS)
    return PluginSearch(directories, paths.POD_STAGE1_ROOTFS, others)


def _find_program(directories: Sequence[str], name: str) -> str | None:
    for directory in directories:
        path = f"{directory}/{name}"
        try:
            if stat.S_ISREG(os.stat(path).st_mode):
                return path
        except OSError:
            pass
    return None
