"""
Having stage1 clean up after ended pods, in `exited-garbage`.

The entrypoint `gc` is a program for each pod. minit's own stage1 also has `gc_many`, under the annotation
`minit/stage1/gc-many`: one program that gets UUIDs as lines on standard input, and answers each with a line of UUID and
exit code when the pod is done.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from minit.base.errors import EXIT_FAILURE, EXIT_UNFINISHED, MinitError, UnfinishedError, describe
from minit.linux import syscalls
from minit.linux.process import ending_with_caller
from minit.manifest.image import ImageManifest
from minit.podfiles import paths
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods import overlay
from minit.stage0.pods.poddirectory import Note, Pod
from minit.stage0.pods.podstatus import read_stage1_tree_id
from minit.stage0.pods.privateusers import read_ids
from minit.stage0.stage1.entrypoints import call, declared_path, gc_flags, interface_version, read_stage1_manifest

# Pods have few different images, so few collectors suffice.
_MAX_COLLECTORS = 4


class Stage1Cleanup:
    """The `gc` of any stage1; a context manager that ends the started programs."""

    def __init__(self, trees: TreeStore, local_config: str, *, debug: bool) -> None:
        self._trees = trees
        self._local_config = local_config
        self._debug = debug
        self._collectors: dict[Path, _Collector] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for collector in self._collectors.values():
            if error is not None and not isinstance(error, Exception):
                collector.kill()
            collector.end()

    def run(self, pod: Pod, note: Note) -> None:
        """
        Run the `gc` entrypoint; a failure is noted and must not keep the pod from being deleted.

        UnfinishedError if the entrypoint was killed, or reports unfinished work: after a deletion the rest of the work
        would be left for ever, while a later call finishes the rest.
        """
        rootfs = pod.path / paths.POD_STAGE1_ROOTFS
        mounted = False
        try:
            manifest = read_stage1_manifest(pod)
            entrypoint = declared_path(manifest, "gc")
            if entrypoint is None:
                note(f'pod "{pod.uuid}": stage1 has no gc entrypoint, skipping stage1 GC')
                return
            version = interface_version(manifest)
            # The overlay is gone after a reboot. The upper layer still has the records for stage1's cleaning.
            if pod.has_file(paths.POD_OVERLAY_PREPARED) and not _is_mount(pod, rootfs):
                tree_id = read_stage1_tree_id(pod)
                layers = pod.path / "overlay" / tree_id
                for place in (rootfs, layers / "upper", layers / "work"):
                    _refuse_links(pod, place)
                tree = self._trees.path(tree_id) / "rootfs"
                overlay.mount_overlay(tree, layers / "upper", layers / "work", rootfs, read_ids(pod))
                mounted = True
        except (OSError, MinitError) as error:
            note(f'pod "{pod.uuid}": skipping stage1 GC: {describe(error)}')
            return
        try:
            flags = gc_flags(version, debug=self._debug, local_config=self._local_config)
            program = self._program_for_many(pod, manifest)
            if program is not None:
                code = self._collector(program, flags, pod.path.parent).collect(pod.uuid)
            else:
                code = call(rootfs / entrypoint, [*flags, pod.uuid], pod.path, show_stdout=False)
            if code == -signal.SIGKILL:
                raise UnfinishedError(f'pod "{pod.uuid}" not removed: stage1 GC was killed; remove the pod again')
            if code == EXIT_UNFINISHED:
                raise UnfinishedError(f'pod "{pod.uuid}" not removed: stage1 GC has not finished; remove the pod again')
            if code != 0:
                note(f'pod "{pod.uuid}": stage1 GC failed: exit status {code}')
        except OSError as error:
            note(f'pod "{pod.uuid}": stage1 GC failed: {describe(error)}')
        finally:
            if mounted:
                try:
                    syscalls.umount2(str(rootfs), syscalls.UMOUNT_NOFOLLOW)
                except OSError as error:
                    note(f'pod "{pod.uuid}": cannot unmount stage1: {describe(error)}')

    def _program_for_many(self, pod: Pod, manifest: ImageManifest) -> Path | None:
        """Return the program that collects many pods, from the tree, which outlives the pod; None without one."""
        entrypoint = manifest.annotation(paths.ANNOTATION_GC_MANY)
        if not entrypoint:
            return None
        with suppress(OSError, MinitError):
            tree_id = read_stage1_tree_id(pod)
            # Nothing removes a tree while a pod refers to the tree.
            if self._trees.is_rendered(tree_id):
                return self._trees.path(tree_id) / "rootfs" / entrypoint.lstrip("/")
        return None

    def _collector(self, program: Path, arguments: Sequence[str], directory: Path) -> _Collector:
        collector = self._collectors.get(program)
        if collector is not None and collector.has_ended:
            del self._collectors[program]
            collector = None
        if collector is None:
            if len(self._collectors) == _MAX_COLLECTORS:
                self._collectors.pop(next(iter(self._collectors))).end()
            collector = self._collectors[program] = _Collector(program, arguments, directory)
        return collector


class _Collector:
    """A running `gc_many` for the pods in a directory."""

    def __init__(self, program: Path, arguments: Sequence[str], directory: Path) -> None:
        self._process = subprocess.Popen(
            [str(program), *arguments],
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            preexec_fn=ending_with_caller(),
        )
        assert self._process.stdout is not None
        # With a buffer: otherwise each byte of an answer is read by a call.
        self._answers = open(self._process.stdout.fileno(), "rb", closefd=False)
        self.has_ended = False

    def collect(self, uuid: str) -> int:
        """Return the exit code for a pod: the program's if the program ends, EXIT_FAILURE for no proper answer."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{uuid}\n".encode())
            words = self._answers.readline().decode("ascii", "replace").split()
            if len(words) == 2 and words[0] == uuid and words[1].removeprefix("-").isdecimal():
                return int(words[1])
            if words:
                self.end()  # SIGPIPE ends a program that writes more
                return EXIT_FAILURE
        return self.end() or EXIT_FAILURE

    def kill(self) -> None:
        """Kill the program and all work for a pod."""
        self._process.kill()

    def end(self) -> int:
        """Have the program end, and return the exit code."""
        self.has_ended = True
        with self._process:
            pass
        return self._process.returncode


def _is_mount(pod: Pod, place: Path) -> bool:
    """Return whether a directory of a pod, or a directory on the way there, is a mount point."""
    resolve = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_XDEV
    try:
        os.close(syscalls.openat2(pod.fd, str(place.relative_to(pod.path)), os.O_PATH, resolve=resolve))
    except OSError as error:
        return error.errno == errno.EXDEV
    return False


def _refuse_links(pod: Pod, place: Path) -> None:
    """Raise OSError for a link on the way from the pod directory to `place`."""
    resolve = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
    os.close(syscalls.openat2(pod.fd, str(place.relative_to(pod.path)), os.O_PATH | os.O_DIRECTORY, resolve=resolve))
