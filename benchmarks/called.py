"""
Not a benchmark: writes down which functions the image's programs call, for a dump that lays out what these write to.

Run it (`python -m benchmarks called`) when a start has come to call others; the image is as right without.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.apps import maker
from benchmarks.world import World, world
from minit.image import dump
from tests.support.firstprogram import NamespaceMachine
from tests.support.pods import PodDirectory, app_section
from tests.support.sandbox import Sandbox

LIST = Path(dump.__file__).with_name("called.txt")
_FD = 100
_SIZE = 1 << 20
_SETTLE_SECONDS = 1.0
_PROGRAM = "rootfs/usr/lib/minit/bin/minit"
# Runs an entrypoint, in all its processes with a byte for each function, in a file that they share.
_RECORDER = f"""
import gc, mmap, sys, types

def codes(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)

gc.unfreeze()
functions = [thing for thing in gc.get_objects() if isinstance(thing, types.FunctionType)]
gc.freeze()
every = [code for function in functions for code in codes(function.__code__)]
names = {{code: f"{{code.co_filename}}:{{code.co_qualname}}" for code in every}}
order = sorted(set(names.values()))
if len(sys.argv) == 1:
    print("\\n".join(order))
    sys.exit()
index = {{name: at for at, name in enumerate(order)}}
places = {{code: index[name] for code, name in names.items()}}
called = mmap.mmap({_FD}, {_SIZE})

def profile(frame, event, argument):
    if event == "call" and frame.f_code in places:
        called[places[frame.f_code]] = 1

del sys.argv[0]
sys.setprofile(profile)
sys.modules["entrypoints." + sys.argv[0]].main()
"""
_WRAPPER = r"""
#include <stdio.h>
#include <unistd.h>
int main(int count, char **arguments)
{
    static const char text[] = {
#include "text.h"
    , 0};
    char program[4096], *words[count + 3];
    snprintf(program, sizeof program, "%s.real", arguments[0]);
    words[0] = arguments[0];
    words[1] = "-c";
    words[2] = (char *)text;
    for (int at = 1; at <= count; at++)
        words[at + 2] = arguments[at];
    execv(program, words);
    return 1;
}
"""
# Before an entrypoint, where no recorder is yet.
_FIRST = ("_exit_code", "_take_streams", "run", "start", "take_over", "take_thread")


def main() -> None:
    """Write the list of the functions that programs of the image call."""
    with world() as bench, tempfile.TemporaryFile() as shared:
        os.truncate(shared.fileno(), _SIZE)
        os.dup2(shared.fileno(), _FD)
        _wrap(bench)
        for work in (_start_pod, _boot, _use_pod, _use_sandbox, _run_pod_on_network):
            work(bench)
        called = {name for name, byte in zip(_names(bench), os.pread(_FD, _SIZE, 0), strict=False) if byte}
        os.close(_FD)
    called.update(f"entrypoints/_dumped.py:{name}" for name in _FIRST)
    LIST.write_text("".join(f"{name}\n" for name in sorted(called)))
    print(f"{len(called)} functions in {LIST}")


def _names(bench: World) -> list[str]:
    """Return what the bytes stand for."""
    command = [f"{bench.stage1 / _PROGRAM}.real", "-c", _RECORDER]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")


def _wrap(bench: World) -> None:
    """Have the recorder in the place of the interpreter."""
    program = bench.stage1 / _PROGRAM
    program.rename(f"{program}.real")
    (bench.path / "text.h").write_text(", ".join(map(str, _RECORDER.encode())))
    (bench.path / "wrapper.c").write_text(_WRAPPER)
    subprocess.run(["cc", "-O1", "-static", "-o", program, bench.path / "wrapper.c"], check=True)


def _start_pod(bench: World) -> None:
    """Start a pod that is killed when it has nothing more to do."""
    with bench.pod("/bin/sleep", "1000") as pod:
        process = pod.start(pass_fds=(_FD,))
        pod.wait_ready()
        time.sleep(_SETTLE_SECONDS)
        os.kill(pod.pid, signal.SIGKILL)
        pod.finish(process)


def _use_pod(bench: World) -> None:
    """Start, enter, stop and collect a pod."""
    with bench.pod("/bin/sleep", "1000") as pod:
        process = pod.start(pass_fds=(_FD,))
        pod.wait_ready()
        for name, *words in (("enter", f"--pid={pod.pid}", "--appname=app", "--", "/bin/true"), ("stop", pod.uuid)):
            pod.call(name, *words, from_tree=name == "enter", pass_fds=(_FD,))
        pod.finish(process)
        pod.call("gc", "--local-config", "/etc/rkt", pod.uuid, pass_fds=(_FD,))


def _use_sandbox(bench: World) -> None:
    """Start, probe and remove a container, as a kubelet has it done."""
    annotations = {
        "minit/log-path": "app.log",
        "minit/make-working-directory": "true",
        "minit/pid-namespace": "app",
        "minit/protected-paths": '{"masked":["/proc/kcore"],"readOnly":["/proc/sys"]}',
        "coreos.com/rkt/stage2/stdout": "log+stream",
        "coreos.com/rkt/stage2/stderr": "log+stream",
    }
    listed = [{"name": name, "value": value} for name, value in annotations.items()]
    logs = bench.path / "logs"
    logs.mkdir()
    sandbox = Sandbox(maker(bench), annotations={"minit/log-directory": str(logs)}, pass_fds=(_FD,))
    probe = (f"--pid={sandbox.pod.pid}", "--appname=app", "--as-app", "--timeout=10s", "--", "/bin/true")
    try:
        for result in (
            sandbox.add("app", app_section("/bin/sleep", "1000", annotations=listed), pass_fds=(_FD,)),
            sandbox.start("app", pass_fds=(_FD,)),
            sandbox.pod.call("enter", *probe, from_tree=True, pass_fds=(_FD,)),
            sandbox.call("app/stop", "--app=app", "--timeout=0s", pass_fds=(_FD,)),
            sandbox.call("app/rm", "--app=app", pass_fds=(_FD,)),
        ):
            assert result.returncode == 0, result.stdout
        sandbox.pod.call("stop", sandbox.pod.uuid, pass_fds=(_FD,))
        sandbox.pod.finish(sandbox.process)
    finally:
        sandbox.pod.remove()


def _run_pod_on_network(bench: World) -> None:
    """Run a pod of two apps that end by themselves."""
    with bench.pod_of({name: app_section("/bin/echo", name) for name in ("a", "b")}) as pod:
        pod.finish(pod.start(net="default", pass_fds=(_FD,)))
        pod.call("gc", "--local-config", "/etc/rkt", pod.uuid, pass_fds=(_FD,))


def _boot(bench: World) -> None:
    """Boot a machine of one app, and let it be."""
    app = app_section("/bin/sh", "-c", "echo up; exec sleep 1000")
    pod = PodDirectory(bench.path / "data", bench.stage1, bench.rootfs, {"app": app}, overlay=False)
    try:
        with NamespaceMachine(bench.path, pod, pass_fds=(_FD,)) as machine:
            machine.wait_for_line("up")
            time.sleep(_SETTLE_SECONDS)
    finally:
        pod.remove()
