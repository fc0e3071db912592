"""The command that makes machines: init build."""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import click

from minit.archives.streams import zstd
from minit.base.errors import ImageError, PodError, StoreError, describe
from minit.base.progress import Progress
from minit.base.value import replace
from minit.cli.commands.imagecommands import (
    check_modules,
    check_processors,
    kernel_for,
    other_processor,
    stage1_for,
)
from minit.cli.flags.sharedoptions import arch_option, quiet_option, stage1_path_option
from minit.cli.grammar import MinitCommand, MinitGroup
from minit.cli.invocation import Invocation
from minit.cli.text.formats import align
from minit.cli.text.progressdisplay import show_progress
from minit.image.cpio import write_cpio
from minit.image.disk import ROOT_MODULES, DiskParts, check_disk, find_stub, write_disk, write_update
from minit.image.foreign import ForeignProcessor
from minit.image.kernelmodules import KernelModules, collect_firmware, collect_modules, find_kernel
from minit.image.toolchain import run_tool
from minit.manifest.machineconfig import MachineConfig, parse_machine
from minit.manifest.machinefields import is_module_name
from minit.manifest.machineupdate import read_public_key
from minit.podfiles import paths
from minit.pods.images import choose_stage1
from minit.pods.preparing import apps_of_manifest
from minit.pods.requests import Stage1Request
from minit.stage0.files.temporary import output_directory, output_file, scratch_directory
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage
from minit.stage0.start.machineroot import MachineParts, Part, lost_capabilities, make_machine_root

_GZIP_LEVEL = 9
_ZSTD_LEVEL = 9
# Until the year 2286, which an initial file system can hold.
_MAXIMUM_TIME_DIGITS = 10
_DISK = "disk"
_UPDATE = "update"
_FORMATS = ("gzip", "zstd", "none", "directory", _DISK, _UPDATE)
# With a kernel, and a root that is read-only.
_OF_DISKS = (_DISK, _UPDATE)
# The second one is of the firmware's variables.
_MODULES_OF_DISKS = ("overlay", "efivarfs")
_MOST_SHOWN = 4
# By the second one the kernel calls the way to compress, which may be a part of the first or of the kernel.
_MODULE_OF_SWAP, _ALIAS_OF_SWAP = "zram", "crypto-lzo-rle"


init_group = MinitGroup("init")


@init_group.command("build", cls=MinitCommand)
@click.option(
    "--manifest",
    metavar="FILE",
    required=True,
    type=click.Path(path_type=Path),
    help="Pod manifest with the apps of the machine; their images are in the store.",
)
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Initial file system to write, or a directory, disk or update.",
)
@click.option("--config", metavar="FILE", type=click.Path(path_type=Path), help="How the machine is to be, a .toml.")
@click.option(
    "--modules-from",
    metavar="PATH",
    type=click.Path(exists=True, path_type=Path),
    help="Kernel package (.deb), one that was unpacked, or a directory /lib/modules/RELEASE.",
)
@click.option("--module", metavar="NAME", multiple=True, help="Kernel module to put in, with all it needs; repeatable.")
@click.option(
    "--firmware-from",
    metavar="PATH",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="Directory or package (.deb) with firmware for the modules; repeatable.  [default: /lib/firmware]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    default="gzip",
    help="How the initial file system is compressed, or that it is a directory, a disk or an update.  [default: gzip]",
)
@click.option(
    "--efi-stub",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Program of a disk by which a firmware starts the kernel.  [default: of Debian's systemd-boot-efi]",
)
@click.option(
    "--signing-key",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Private key (PEM, Ed25519) that an update is signed with.",
)
@arch_option
@stage1_path_option
@click.option("--overwrite", is_flag=True, help="Replace what is at the output.")
@click.option("--dry-run", is_flag=True, help="Show what would go in and how large it is, and write nothing.")
@quiet_option
@click.pass_obj
def build_machine(
    invocation: Invocation,
    manifest: Path,
    output: Path | None,
    config: Path | None,
    modules_from: Path | None,
    module: tuple[str, ...],
    firmware_from: tuple[Path, ...],
    form: str,
    efi_stub: Path | None,
    signing_key: Path | None,
    arch: str | None,
    stage1_path: str | None,
    overwrite: bool,
    dry_run: bool,
    quiet: bool,
) -> None:
    """
    Build the root of a machine of which minit is the first program.

    A kernel boots it with the apps of the pod manifest, and nothing else has to be in it.

    \b
      minit init build --manifest pod.json --output machine.cpio.gz
      minit init build --manifest pod.json --config machine.toml --output machine.cpio.zst --format zstd \\
          --modules-from linux-image.deb --module virtio_net --module virtio_blk
      minit init build --manifest pod.json --config machine.toml --output machine.disk --format disk \\
          --modules-from linux-image.deb
      minit init build --manifest pod.json --config machine.toml --output 2.update --format update \\
          --modules-from linux-image.deb --signing-key update.key

    """
    invocation.require_root()
    if output is None and not dry_run:
        raise click.UsageError("Missing option '--output'")
    processor = other_processor(arch)
    _refuse_unfit(form, module, efi_stub, signing_key, has_kernel=modules_from is not None or processor is not None)
    is_of_disk = form in _OF_DISKS
    if output is not None and output.exists() and not overwrite and not dry_run:
        raise StoreError(_exists(output))
    data, parsed = _read_config(config)
    if form == _UPDATE and parsed.update is None:
        raise click.UsageError("--format update needs --config with a table [update]: model, version, keys")
    keys = tuple(_read_keys(config, parsed))
    with (
        Store(invocation.data) as store,
        show_progress(invocation, quiet=quiet) as progress,
        scratch_directory(invocation.data / "minit/tmp") as scratch,
    ):
        apps, manifest_bytes = apps_of_manifest(store, manifest, invocation.insecure)
        stage1 = _choose_stage1(invocation, store, processor, stage1_path, progress)
        check_processors(stage1, [app.image for app in apps], arch)
        names = [*module, *parsed.modules, *(_MODULES_OF_DISKS if is_of_disk else ())]
        names += [_MODULE_OF_SWAP] if parsed.swap is not None else []
        if modules_from is None and processor is not None and names:
            modules_from = kernel_for(processor, progress)
        with _unpacked(modules_from, scratch) as package:
            modules = _collect_modules(invocation, stage1, package, names, parsed)
            firmware = _collect_firmware(invocation, package, modules, firmware_from, scratch)
            disk = None
            if is_of_disk:
                disk = _disk_parts(stage1, package, parsed, efi_stub)
                early = _collect_firmware(invocation, package, disk.modules, firmware_from, scratch)
                disk, firmware = replace(disk, firmware=early), tuple(sorted({*firmware, *early}))
        parts = MachineParts(
            stage1=stage1,
            apps=apps,
            manifest_bytes=manifest_bytes,
            config=parsed,
            config_bytes=data,
            modules=() if modules is None else tuple(_module_files(modules)),
            firmware=firmware,
            keys=keys,
            built_seconds=_time_of_build(),
        )
        if dry_run or form != "directory":
            root = scratch / "root"
            root.mkdir()
            sizes = make_machine_root(root, store, parts, progress)
            if not dry_run:
                assert output is not None
                with output_file(output, overwrite=overwrite, exists=_exists(output)) as file:
                    if disk is None:
                        _write_initial(invocation, file, root, form, progress)
                    else:
                        _write_for_disk(invocation, file, root, disk, parts, signing_key, scratch / "disk", progress)
        else:
            assert output is not None
            with output_directory(output, overwrite=overwrite) as root:
                sizes = make_machine_root(root, store, parts, progress)
    if dry_run:
        invocation.say(_size_table(sizes), end="")


def _refuse_unfit(
    form: str, modules: Sequence[str], efi_stub: Path | None, signing_key: Path | None, *, has_kernel: bool
) -> None:
    """Raise UsageError for options that need others."""
    if modules and not has_kernel:
        raise click.UsageError("--module needs --modules-from")
    if form in _OF_DISKS and not has_kernel:
        raise click.UsageError(f"--format {form} needs --modules-from: the kernel comes from there as well")
    if efi_stub is not None and form not in _OF_DISKS:
        raise click.UsageError("--efi-stub needs --format disk or update")
    if (signing_key is None) == (form == _UPDATE):
        raise click.UsageError("--format update and --signing-key need each other")
    bad = next((name for name in modules if not is_module_name(name)), None)
    if bad is not None:
        raise click.UsageError(f'--module: expected the name of a kernel module, got "{bad}"')


def _choose_stage1(
    invocation: Invocation, store: Store, processor: ForeignProcessor | None, path: str | None, progress: Progress
) -> StoredImage:
    if processor is not None and path is None:
        image, obstacle = stage1_for(processor, progress)
        if obstacle is not None:
            invocation.note(obstacle)
        path = str(image)
    return choose_stage1(invocation.caller, store, Stage1Request(path=path))(progress)


def _time_of_build() -> int | None:
    # https://reproducible-builds.org/specs/source-date-epoch/
    text = os.environ.get("SOURCE_DATE_EPOCH")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _MAXIMUM_TIME_DIGITS):
        raise click.UsageError(f'expected seconds since 1970 in SOURCE_DATE_EPOCH, got "{text}"')
    return int(text)


def _read_config(path: Path | None) -> tuple[bytes, MachineConfig]:
    if path is None:
        return b"", MachineConfig()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PodError(f"cannot read {describe(error)}") from error
    return data, parse_machine(data, str(path))


def _read_keys(config: Path | None, parsed: MachineConfig) -> Iterator[tuple[str, bytes]]:
    for name in () if config is None or parsed.update is None else parsed.update.keys:
        assert config is not None
        path = config.parent / name
        try:
            data = path.read_bytes()
        except OSError as error:
            raise PodError(f"{config}: update.keys: cannot read {describe(error)}") from error
        read_public_key(data, str(path))
        yield name, data


def _collect_modules(
    invocation: Invocation, stage1: StoredImage, package: Path | None, names: Sequence[str], config: MachineConfig
) -> KernelModules | None:
    if package is None:
        if names:
            raise click.UsageError(f"kernel module {names[0]} is asked for: name a kernel by --modules-from")
        return None
    modules = collect_modules(package, names, [_ALIAS_OF_SWAP] if config.swap is not None else [])
    check_modules(modules, stage1)
    for name in modules.builtin:
        if name not in (*_MODULES_OF_DISKS, _MODULE_OF_SWAP):
            invocation.note(f"kernel module {name} is a part of the kernel itself")
    return modules


def _module_files(modules: KernelModules) -> Iterator[tuple[str, bytes]]:
    yield "table.json", modules.table()
    for module in modules.modules:
        yield f"{module.name}.ko", module.data


def _collect_firmware(
    invocation: Invocation,
    package: Path | None,
    modules: KernelModules | None,
    sources: Sequence[Path],
    scratch: Path,
) -> tuple[tuple[str, bytes], ...]:
    """Return the firmware that modules ask for; one that is missing is said, since few machines need all of it."""
    if package is None or modules is None or not any(module.firmware for module in modules.modules):
        return ()
    own = Path(paths.MACHINE_FIRMWARE)
    sources = sources or ([own] if own.is_dir() else [])
    with ExitStack() as stack:
        unpacked = [stack.enter_context(_unpacked(source, scratch)) for source in sources]
        directories = [path for path in unpacked if path is not None]
        found = collect_firmware(modules.modules, modules.release, package, directories)
    for name, missing in found.missing:
        more = f" and {len(missing) - _MOST_SHOWN} more" if len(missing) > _MOST_SHOWN else ""
        names = ", ".join(missing[:_MOST_SHOWN])
        invocation.note(f"kernel module {name}: its firmware is missing, see --firmware-from: {names}{more}")
    return found.files


def _disk_parts(stage1: StoredImage, package: Path | None, config: MachineConfig, stub: Path | None) -> DiskParts:
    assert package is not None
    # Before all the work that a disk is made of.
    kernel = find_kernel(package)
    architecture = stage1.manifest.label("arch") or ""
    names = check_disk(architecture)
    path = stub or find_stub(names, package)
    modules = collect_modules(package, [*config.disk.modules, *ROOT_MODULES])
    check_modules(modules, stage1)
    return DiskParts(
        disk=config.disk,
        architecture=architecture,
        names=names,
        kernel=kernel.read_bytes(),
        modules=modules,
        stub=path.read_bytes(),
        stub_path=path,
        watchdog=config.watchdog,
    )


@contextmanager
def _unpacked(source: Path | None, scratch: Path) -> Iterator[Path | None]:
    if source is None or source.is_dir():
        yield source
        return
    # 400 MB of a kernel with all drivers: more than /tmp may have.
    with tempfile.TemporaryDirectory(dir=scratch) as directory:
        try:
            run_tool("dpkg-deb", "-x", str(source), directory)
        except ImageError as error:
            raise ImageError(f"cannot unpack {source}: {error}") from error
        yield Path(directory)


def _write_initial(invocation: Invocation, file: IO[bytes], root: Path, form: str, progress: Progress) -> None:
    for name in lost_capabilities(root):
        invocation.note(f"warning: {name} loses its capabilities: use --format directory or disk")
    with _compressed(file, form) as archive:
        write_cpio(root, archive, progress)


def _write_for_disk(
    invocation: Invocation,
    file: IO[bytes],
    root: Path,
    disk: DiskParts,
    parts: MachineParts,
    key: Path | None,
    work: Path,
    progress: Progress,
) -> None:
    work.mkdir()
    if key is None or parts.config.update is None:
        write_disk(file, root, disk, work, progress)
        return
    signer = write_update(file, root, disk, parts.config.update, key, work, progress)
    if all(read_public_key(data, name) != signer for name, data in parts.keys):
        invocation.note(f"warning: update.keys have no public key of {key}: the machine takes no further update of it")


def _exists(output: Path) -> str:
    return f"{output} exists (try --overwrite)"


def _compressed(file: IO[bytes], form: str) -> Any:
    if form == "gzip":
        return gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0)
    if form == "zstd":
        return zstd.ZstdFile(file, "wb", level=_ZSTD_LEVEL)
    return _as_is(file)


@contextmanager
def _as_is(file: IO[bytes]) -> Iterator[IO[bytes]]:
    yield file


def _size_table(parts: Sequence[Part]) -> str:
    rows = [(part.name, str(part.files), _mebibytes(part.size_bytes)) for part in parts]
    total = "all", str(sum(part.files for part in parts)), _mebibytes(sum(part.size_bytes for part in parts))
    return align([("PART", "FILES", "SIZE"), *rows, total])


def _mebibytes(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB"
