"""Building app images: the manifest, the files collected, and bad input."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from minit.base.errors import ImageError, ManifestError
from minit.base.progress import silent
from minit.image.appimage import Contents, Directory, HostFiles, ImageFields, Symlink, Text, build_app_image
from minit.manifest.image import ImageManifest, parse_image_manifest
from tests.support.elf import elf_bytes


def build(
    output: Path, *, rootfs: Path | None = None, from_host: Sequence[Path] = (), **fields: Any
) -> tuple[ImageManifest, list[str]]:
    """Build an image and return its manifest and the names in it."""
    build_app_image(output, ImageFields(**fields), silent, rootfs=rootfs, from_host=from_host)
    with tarfile.open(output) as aci:
        manifest = aci.extractfile("manifest")
        assert manifest is not None
        return parse_image_manifest(manifest.read(), "manifest"), aci.getnames()


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    """A root filesystem with one file."""
    directory = tmp_path / "My Root"
    (directory / "bin").mkdir(parents=True)
    (directory / "bin/program").write_text("#!/bin/sh\n")
    return directory


def test_name_and_platform_have_defaults(tmp_path: Path, rootfs: Path) -> None:
    """The name is made from the directory's, and rkt's required labels are those of this machine."""
    manifest, names = build(tmp_path / "a.aci", rootfs=rootfs)
    assert manifest.name == "my-root"
    assert manifest.label("os") == "linux"
    assert manifest.label("arch") in ("amd64", "aarch64")
    assert names == ["manifest", "rootfs", "rootfs/bin", "rootfs/bin/program"]


def test_everything_given_is_in_the_manifest(tmp_path: Path, rootfs: Path) -> None:
    """Every option of the app section is written where appc has it, and labels given win."""
    manifest, _ = build(
        tmp_path / "a.aci",
        rootfs=rootfs,
        name="example.com/app",
        exec=["/bin/program", "--flag"],
        user="1000",
        group="1001",
        environment=[("A", "1"), ("B", "")],
        working_directory="/bin",
        ports=[("http", "tcp", 80)],
        mounts=[("data", "/data")],
        labels=[("version", "1.0"), ("arch", "i386")],
    )
    app = manifest.app
    assert app is not None
    assert manifest.name == "example.com/app"
    assert manifest.labels == (("version", "1.0"), ("arch", "i386"), ("os", "linux"))
    assert (app.exec, app.user, app.group) == (("/bin/program", "--flag"), "1000", "1001")
    assert app.environment == (("A", "1"), ("B", ""))
    assert app.working_directory == "/bin"
    assert [(port.name, port.protocol, port.port) for port in app.ports] == [("http", "tcp", 80)]
    assert [(point.name, point.path) for point in app.mount_points] == [("data", "/data")]


def test_a_program_of_the_machine_is_the_default_command(tmp_path: Path) -> None:
    """An image made from a program runs it, and has the directories and accounts any program expects."""
    manifest, names = build(tmp_path / "a.aci", from_host=[Path("/usr/bin/busybox")])
    assert manifest.name == "busybox"
    assert manifest.app is not None
    assert manifest.app.exec == ("/usr/bin/busybox",)
    assert {"rootfs/etc/passwd", "rootfs/etc/group", "rootfs/tmp", "rootfs/usr/bin/busybox"} <= {*names}


def test_the_rootfs_wins_over_the_machine(tmp_path: Path, rootfs: Path) -> None:
    """A file that is in the directory is not replaced by the machine's."""
    (rootfs / "etc").mkdir()
    (rootfs / "etc/passwd").write_text("app:x:1000:1000::/:/bin/sh\n")
    build(tmp_path / "a.aci", rootfs=rootfs, from_host=[Path("/usr/bin/busybox")])
    with tarfile.open(tmp_path / "a.aci") as aci:
        passwd = aci.extractfile("rootfs/etc/passwd")
        assert passwd is not None
        assert passwd.read().startswith(b"app:")


def test_a_script_brings_its_interpreter(tmp_path: Path) -> None:
    """The interpreter of a script is in the image, and what `env` looks up for it."""
    script = tmp_path / "script"
    script.write_text("#!/usr/bin/env -S sh -e\n")
    _, names = build(tmp_path / "a.aci", from_host=[script])
    assert "rootfs/usr/bin/env" in names
    assert "rootfs/usr/bin/sh" in names or "rootfs/bin/sh" in names
    assert f"rootfs{script}" in names


def test_a_directory_in_the_place_of_a_symlink_is_bridged(tmp_path: Path) -> None:
    """A program is reachable by its path here where the rootfs has a directory and the machine a symlink."""
    real, link, rootfs = tmp_path / "usr/bin", tmp_path / "bin", tmp_path / "rootfs"
    real.mkdir(parents=True)
    link.symlink_to("usr/bin")
    (real / "program").write_bytes(elf_bytes())
    (rootfs / str(link).lstrip("/")).mkdir(parents=True)
    _, names = build(tmp_path / "a.aci", rootfs=rootfs, from_host=[link / "program"])
    assert f"rootfs{real}/program" in names
    with tarfile.open(tmp_path / "a.aci") as aci:
        assert aci.getmember(f"rootfs{link}/program").linkname == f"{real}/program"


def test_a_library_in_an_unusual_directory_gets_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries found by /etc/ld.so.conf only are linked into the loader's directory: an image has no loader cache."""
    configuration = tmp_path / "ld.so.conf"
    configuration.write_text(f"{tmp_path}/opt # a comment\n")
    monkeypatch.setattr("minit.image.libraries.LD_SO_CONF", configuration)
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt/libunusual.so").write_bytes(elf_bytes())
    (tmp_path / "ld.so").write_bytes(elf_bytes())
    program = tmp_path / "program"
    program.write_bytes(elf_bytes(needed=["libunusual.so"], interpreter=f"{tmp_path}/ld.so"))
    _, names = build(tmp_path / "a.aci", from_host=[program])
    assert f"rootfs{tmp_path}/opt/libunusual.so" in names
    with tarfile.open(tmp_path / "a.aci") as aci:
        assert aci.getmember(f"rootfs{tmp_path}/libunusual.so").linkname == f"{tmp_path}/opt/libunusual.so"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file or directory"),
        (b"plain text\n", "neither an ELF file nor a #! script"),
        (b"", "neither an ELF file nor a #! script"),
        (b"#!/usr/bin/env no-such-program-here\n", "its program is not in /usr/local/sbin:"),
        (b"\x7fELF\x02\x01", "broken ELF file: a header points outside the file"),
        (elf_bytes(needed=["libnothere.so.9"], interpreter="/bin/sh"), "needs libnothere.so.9, which is not on this"),
    ],
)
def test_what_is_no_program_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    """A program that is missing, is none, or lacks something gives one line and no output."""
    program = tmp_path / "program"
    if content is not None:
        program.write_bytes(content)
    with pytest.raises(ImageError) as caught:
        build(tmp_path / "a.aci", from_host=[program])
    assert str(program) in str(caught.value)
    assert message in str(caught.value)
    assert not (tmp_path / "a.aci").exists()


def test_a_missing_interpreter_of_a_script_is_named(tmp_path: Path) -> None:
    """The message is about the interpreter, which is what the user has to install."""
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    with pytest.raises(ImageError, match="^cannot take /no/such/interpreter from this machine: no such file"):
        HostFiles(Contents()).add_program(script)


def test_nothing_to_make_an_image_from_is_refused(tmp_path: Path) -> None:
    """Neither a directory nor a program is an error, not an empty image."""
    with pytest.raises(ImageError, match="^nothing to make an image from"):
        build(tmp_path / "a.aci")


def test_an_output_inside_its_input_is_refused(rootfs: Path) -> None:
    """An image is never packed into itself."""
    with pytest.raises(ImageError, match="put it elsewhere"):
        build(rootfs / "a.aci", rootfs=rootfs)


def test_a_missing_rootfs_is_refused(tmp_path: Path) -> None:
    """A directory that is not there is named."""
    with pytest.raises(ImageError, match=r"^cannot read the rootfs: .*/none: no such file or directory$"):
        build(tmp_path / "a.aci", rootfs=tmp_path / "none")


@pytest.mark.parametrize(
    "options",
    [
        {"name": "Not An Identifier"},
        {"working_directory": "relative"},
        {"labels": [("version", "1"), ("version", "2")]},
        {"labels": [("arch", "pdp11")]},
        {"ports": [("http", "tcp", 0)]},
        {"ports": [("Bad Name", "tcp", 80)]},
        {"environment": [("A=B", "")]},
    ],
)
def test_a_bad_manifest_is_never_written(tmp_path: Path, rootfs: Path, options: dict[str, Any]) -> None:
    """A file that stage0 would refuse to read is refused when the image is built."""
    with pytest.raises(ManifestError, match="^image manifest: "):
        build(tmp_path / "a.aci", rootfs=rootfs, **options)
    assert not (tmp_path / "a.aci").exists()


def test_a_path_is_resolved_inside_the_image() -> None:
    """Symlinks lead to paths of the image, absolute ones and those with `..` too."""
    contents = Contents()
    contents.add(PurePosixPath("/usr"), Directory())
    contents.add(PurePosixPath("/usr/lib"), Directory())
    contents.add(PurePosixPath("/lib"), Symlink(target="usr/lib"))
    contents.add(PurePosixPath("/usr/lib/plugins"), Symlink(target="/lib/../../../usr"))
    assert contents.resolve(PurePosixPath("/lib/plugins/lib/x")) == PurePosixPath("/usr/lib/x")


def test_an_entry_lands_where_its_directory_leads() -> None:
    """A file added below a symlink is put into the directory the symlink names."""
    contents = Contents()
    contents.add(PurePosixPath("/usr"), Directory())
    contents.add(PurePosixPath("/bin"), Symlink(target="usr"))
    contents.add(PurePosixPath("/bin/sh"), Text(text=""))
    assert PurePosixPath("/usr/sh") in contents
    assert PurePosixPath("/bin/sh") in contents


def test_what_is_there_stays(tmp_path: Path) -> None:
    """The tree added first keeps its files when others of the same names come."""
    (tmp_path / "etc").mkdir()
    contents = Contents()
    contents.add_tree(tmp_path)
    contents.add(PurePosixPath("/etc"), Symlink(target="elsewhere"))
    assert contents.resolve(PurePosixPath("/etc/passwd")) == PurePosixPath("/etc/passwd")


def test_symlinks_of_an_added_tree_stay_in_the_image(tmp_path: Path) -> None:
    """An absolute symlink in the tree means a path of the image, not of this machine."""
    (tmp_path / "bin").symlink_to("/usr/bin")
    contents = Contents()
    contents.add_tree(tmp_path)
    assert contents.resolve(PurePosixPath("/bin/sh")) == PurePosixPath("/usr/bin/sh")
    assert PurePosixPath("/bin/sh") not in contents


def test_symlinks_in_a_circle_are_refused() -> None:
    """A path that never ends anywhere is an error, as in the kernel."""
    contents = Contents()
    contents.add(PurePosixPath("/a"), Symlink(target="b"))
    contents.add(PurePosixPath("/b"), Symlink(target="/a"))
    with pytest.raises(ImageError, match="^/a/x: too many levels of symbolic links in the image$"):
        contents.resolve(PurePosixPath("/a/x"))
