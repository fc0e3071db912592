"""The command line as a whole: its grammar, its messages and its exit codes."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from minit.cli.commandgroups import app_group, commands, image_group
from minit.cli.flags.sharedoptions import choose_file
from minit.cli.grammar import AppOption, CommandTable, GlobalOption, MinitCommand, MinitGroup
from minit.cli.main import run

COMMANDS = {
    *("run", "prepare", "run-prepared", "app", "enter", "attach", "list", "status", "cat-manifest", "rename", "start"),
    *("restart", "logs", "events", "stop", "rm", "release", "gc", "export", "top", "diagnose", "play", "cri", "init"),
    *("generate", "volume", "cp", "diff", "port", "system", "kill", "stats", "build", "fetch", "push", "tag", "image"),
    *("stage1", "version", "unshare", "completion", "help", "trust", "compose", "network", "upgrade"),
}
UUID = "f3690550-7b80-4be7-839b-2359a85fb0d2"


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Run a command line and return its exit code and output."""
    code = run([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def leaves(group: click.Group, *path: str) -> list[tuple[tuple[str, ...], click.Command]]:
    """Return all commands that are no groups, with the words that call them."""
    found = []
    for name, command in group.commands.items():
        found += leaves(command, *path, name) if isinstance(command, click.Group) else [((*path, name), command)]
    return found


def test_commands() -> None:
    """Every command is there."""
    assert set(commands.commands) == COMMANDS


def test_no_translation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is called looks for no translation of click's words."""

    def find(message: str) -> str:
        raise AssertionError(message)

    group = MinitGroup("minit", commands={"done": MinitCommand("done", callback=lambda: None)})
    monkeypatch.setattr(click.decorators, "_", find)
    assert run(["done"], group) == 0


@pytest.mark.parametrize(("path", "command"), leaves(commands))
def test_every_command_explains_itself(
    path: tuple[str, ...], command: click.Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command and each of its options has a help text, shown by --help and -h."""
    assert isinstance(command, MinitCommand)
    assert command.help
    assert [option.name for option in command.params if isinstance(option, click.Option) and not option.help] == []
    code, out, err = call(capsys, *path, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: minit {' '.join(path)} ")
    assert "Global options, such as --dir" in out
    assert call(capsys, *path, "-h")[1] == out


def test_help_lists_the_commands_in_sections(capsys: pytest.CaptureFixture[str]) -> None:
    """`minit --help` shows every command once, with a line of help."""
    code, out, _ = call(capsys, "--help")
    assert code == 0
    for section in ("Running pods:", "Managing pods:", "Images:", "Other:"):
        assert section in out
    for name in COMMANDS:
        assert sum(line.split()[:1] == [name] for line in out.splitlines()) == 1


@pytest.mark.parametrize("group", [commands, app_group, image_group])
@pytest.mark.parametrize("limit", [100, 70])
def test_the_tables_of_commands_say_what_the_commands_say(group: MinitGroup, limit: int) -> None:
    """Lists of commands, which import none, have the beginnings of their helps, and a section for all or for none."""
    told = [(command.name, command.get_short_help_str(limit=limit)) for command in group.commands.values()]
    assert [(name, text) for name, _, text in group.listed(limit)] == told
    assert len({section == "" for _, section, _ in group.listed(limit)}) == 1
    assert not any(command.hidden for command in group.commands.values())


@pytest.mark.parametrize("group", [commands, app_group, image_group])
def test_help_texts_stand_once(group: MinitGroup) -> None:
    """The help of a command begins with the text of its table, which its docstring does not repeat."""
    assert isinstance(group.commands, CommandTable)
    for name, listing in group.commands.listings.items():
        command = group.commands[name]
        assert not (inspect.getdoc(command.callback) or "").startswith(listing.help), name
        assert command.short_help == listing.help or (command.help or "").startswith(listing.help), name


def test_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command the help goes to stderr, and the exit code is rkt's 2."""
    code, out, err = call(capsys)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: minit ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("frobnicate", 'minit: unknown command "frobnicate" (see minit --help)'),
        ("ps", 'minit: unknown command "ps", use minit list (see minit --help)'),
        ("image ls", 'image: unknown command "ls", use minit image list (see minit image --help)'),
        ("login x", 'minit: unknown command "login": skopeo login keeps credentials (see minit --help)'),
        ("help ps", 'help: unknown command "ps", use minit list (see minit help --help)'),
        ("image frobnicate", 'image: unknown command "frobnicate" (see minit image --help)'),
        ("st x", 'minit: unknown command "st": could be status, stop, start, stats, stage1 (see minit --help)'),
        ("run --mds-register a.aci", None),
        (
            "prepare --stage1-url=https://x/y.aci a.aci",
            'prepare: --stage1-url: expected file:///PATH, got "https://x/y.aci"; fetch it, then use --stage1-path'
            " (see minit prepare --help)",
        ),
        ("prepare --stage1-from-dir=../x a.aci", None),
        (
            "prepare --stage1-path=x --stage1-url=file:///y a.aci",
            "prepare: the --stage1 options exclude each other (see minit prepare --help)",
        ),
        ("sttaus", 'minit: unknown command "sttaus", did you mean status? (see minit --help)'),
        ("image rendr x", 'image: unknown command "rendr", did you mean render? (see minit image --help)'),
        ("run --volum=x a.aci", "run: unknown flag: --volum, did you mean --volume? (see minit run --help)"),
        ("run a.aci --memroy=1", "run: unknown flag: --memroy, did you mean --memory? (see minit run --help)"),
        ("run -P a.aci", "run: unknown flag: -P, use --port (see minit run --help)"),
        ("run a.aci -e A", 'run: --environment: expected NAME=VALUE, got "A" (see minit run --help)'),
        ("list --nope", "list: unknown flag: --nope (see minit list --help)"),
        ("list extra", "list: got unexpected extra argument (extra) (see minit list --help)"),
        ("status", "status: give either a UUID or --uuid-file (see minit status --help)"),
        ("status --wait=soon x", None),
        (
            "run --volume=x a.aci",
            'run: --volume x: expected kind=host, kind=named, kind=image or kind=empty, got "" (see minit run --help)',
        ),
        (
            "run --volume=x,kind=empty --volume=x,kind=empty a.aci",
            'run: --volume: several volumes are named "x" (see minit run --help)',
        ),
        (
            "prepare a.aci --mount=volume=x,target=/a",
            'prepare: --mount: no --volume is named "x" (its target is /a) (see minit prepare --help)',
        ),
        ("prepare --mount=volume=x a.aci", None),
        (
            "prepare --volume a.aci",
            "prepare: --volume: expected NAME,kind=host,source=PATH, NAME,kind=named, NAME,kind=image,source=IMAGE, "
            "NAME,kind=empty or"
            " SOURCE:TARGET[:ro], with a name of lower-case"
            ' letters, digits and inner dashes, got "a.aci" (see minit prepare --help)',
        ),
        (
            "run --net=host a.aci --port=http:80",
            "run: --port needs a network of the pod's own, --net=host gives it none (see minit run --help)",
        ),
        ("run --net=a --net=b,none --port=http:80 a.aci", None),
        (
            "run --port=80 a.aci",
            'run: --port: expected [IP:]PORT:PORT[/udp] or NAME:[IP:]PORT, got "80" (see minit run --help)',
        ),
        ("run --dns=host --dns=none a.aci", None),
        ("run-prepared --dns=here x", None),
        ("run-prepared --volume=x x", "run-prepared: unknown flag: --volume (see minit run-prepared --help)"),
        ("prepare --dns=host a.aci", "prepare: unknown flag: --dns (see minit prepare --help)"),
        ("run --set-env=A=1 --set-env=A=2 a.aci", "run: --set-env: A is set twice (see minit run --help)"),
        (
            "prepare --pod-manifest=f --volume=x --inherit-env",
            "prepare: --pod-manifest excludes --volume, --inherit-env: write what you mean into the manifest"
            " (see minit prepare --help)",
        ),
        ("prepare --pod-manifest=f --port=x a.aci", None),
        ("prepare --pod-manifest=f --memory=1G", "prepare: --memory must follow an image (see minit prepare --help)"),
        ("run a.aci --caps-retain=CAP_KILL --caps-remove=CAP_KILL", None),
        ("run --user=x a.aci b.aci", "run: --user must follow an image: there are several (see minit run --help)"),
        ("run", "run: no image given (see minit run --help)"),
        ("prepare --net=host a.aci", "prepare: unknown flag: --net (see minit prepare --help)"),
        ("run --ipc=all a.aci", None),
        ("gc --grace-period=1", None),
        ("image build", None),
        (
            "image build --output=x --port=80",
            'build: --port: expected name=...,protocol=...,port=..., got "80" (see minit image build --help)',
        ),
        (
            "image build --output=x --port=name=a,protocol=tcp,port=x",
            'build: --port: expected a port number, got "x" (see minit image build --help)',
        ),
        (
            "image build --output=x --mount=name=a,name=b",
            'build: --mount: expected name=...,path=..., got "name=a,name=b" (see minit image build --help)',
        ),
        ("image build --output=x --label=y", None),
        ("image build --output=x --env=1=2", None),
        (
            "image build --output=x tests",
            'build: unexpected "tests": arguments are those of --exec, and files come by --rootfs, --from-host or'
            " --copy (see minit image build --help)",
        ),
        ("--insecure-options=images list", None),
    ],
)
def test_usage_errors(line: str, message: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong command line ends with 254, as rkt does, and one line that says what is wrong and where to look."""
    code, out, err = call(capsys, f"--dir={tmp_path}", *line.split())
    assert (code, out, err.count("\n")) == (254, "", 1)
    assert "see minit" in err
    if message is not None:
        assert err == message + "\n"


def test_unique_prefixes_of_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A command may be shortened as long as it stays unique, and is called by its name in messages."""
    assert call(capsys, "vers")[0] == 0
    _, _, err = call(capsys, f"--dir={tmp_path}", "statu", UUID)
    assert err == f'status: no matches found for "{UUID}"\n'


def test_global_options_stand_anywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Global options are taken before the command, after it, between its words and in groups."""
    (tmp_path / "pods/run" / UUID).mkdir(parents=True)
    for words in (
        ["--dir", tmp_path, "list", "--no-legend", "--format=json"],
        ["list", f"--dir={tmp_path}", "--format", "json"],
        ["--dir=/nonexistent", "list", "--format=json", f"--dir={tmp_path}", "--local-config=/x", "--debug=false"],
    ):
        code, _, err = call(capsys, *words)
        assert code == 0
        assert err == f'list: skipping pod "{UUID}": pod "{UUID}" is exited and has no manifest\n'
    assert call(capsys, "image", f"--dir={tmp_path}", "list", "--format=json")[1] == "null\n"


def test_booleans_in_go_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--no-legend=false` is no `--no-legend`."""
    assert call(capsys, f"--dir={tmp_path}", "list", "--no-legend")[1] == ""
    assert call(capsys, f"--dir={tmp_path}", "list", "--no-legend=false")[1].startswith("UUID\t")


def test_looking_creates_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """list and status leave a data directory alone that does not exist."""
    data = tmp_path / "data"
    assert call(capsys, f"--dir={data}", "list", "--format=json")[:2] == (0, "null\n")
    assert call(capsys, f"--dir={data}", "status", "abc")[0] == 254
    assert not data.exists()


def test_unreadable_uuid_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """status exits 1 if it cannot read the file with the UUID, stop exits 254."""
    missing = tmp_path / "uuid"
    code, _, err = call(capsys, "status", f"--uuid-file={missing}")
    assert (code, err) == (1, f"status: cannot read the UUID from {missing}: no such file or directory\n")
    assert call(capsys, "stop", f"--uuid-file={missing}")[0] == 254


def test_debug_shows_causes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --debug the chain of causes follows the message."""
    _, _, err = call(capsys, "--debug", "status", f"--uuid-file={tmp_path}/uuid")
    assert err.splitlines()[1:] == [f"└─FileNotFoundError: {tmp_path}/uuid: no such file or directory"]


def test_a_bug_is_one_line_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An exception nobody thought of ends with 254 and one line; its traceback is shown with --debug."""
    import minit

    monkeypatch.delattr(minit, "__version__")
    code, _, err = call(capsys, "version")
    assert (code, err) == (
        254,
        "version: AttributeError: module 'minit' has no attribute '__version__' (a bug in minit)\n",
    )
    assert "Traceback" in call(capsys, "version", "--debug")[2]


def test_reader_that_leaves(tmp_path: Path) -> None:
    """Output into a closed pipe ends the command without a complaint."""
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        [sys.executable, "-m", "minit", f"--dir={tmp_path}", "list"], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert result.stderr == b""


@pytest.mark.parametrize(
    ("closed", "output"), [("<&-", b"null\n"), (">&-", b""), ("2>&-", b"null\n"), ("<&- >&- 2>&-", b"")]
)
def test_closed_standard_streams(tmp_path: Path, closed: str, output: bytes) -> None:
    """minit works without standard streams."""
    words = f"{sys.executable} -m minit --dir={tmp_path} list --format=json {closed}"
    result = subprocess.run(words, shell=True, capture_output=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, output, b"")
    words = f"{sys.executable} -m minit --dir={tmp_path} app stats {closed}"
    result = subprocess.run(words, shell=True, capture_output=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")


def test_full_errors(tmp_path: Path) -> None:
    """An error that cannot be told has the exit code of any other."""
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "minit", f"--dir={tmp_path}", "status", "2d381b2a"]
        assert subprocess.run(words, stderr=full, check=False).returncode == 254


@pytest.mark.skipif(os.geteuid() != 0, reason="gives up root's privileges")
def test_a_command_for_root_only() -> None:
    """A command that needs root of the machine says so in one line."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writer, 2)
        os.setuid(65534)
        sys.stderr = open(2, "w", closefd=False)
        code = run(["cri"])
        sys.stderr.flush()
        os._exit(code)
    os.close(writer)
    with open(reader) as stderr:
        assert stderr.read() == "cri: cannot run as unprivileged user: this command needs root\n"
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 254


def test_completion() -> None:
    """The shell completes commands and options, those of apps included."""
    from click.shell_completion import ShellComplete

    completion = ShellComplete(commands, {}, "minit", "_MINIT_COMPLETE")
    assert {item.value for item in completion.get_completions([], "run")} == {"run", "run-prepared"}
    options = {item.value for item in completion.get_completions(["run", "a.aci"], "--")}
    assert {"--exec", "--mount", "--volume", "--hostname", "--dir"} <= options
    modes = {item.value for item in completion.get_completions(["run", "a.aci", "--stdout"], "")}
    assert modes == {"log", "null", "stream", "tty", "log+stream", "log+tty"}


def test_options_stand_in_one_section_each() -> None:
    """The classes by which the help is divided are the ones the options have."""
    run_command = commands.commands["run"]
    kinds = {type(option) for option in run_command.params if isinstance(option, click.Option)}
    assert {AppOption, GlobalOption} <= kinds
    assert isinstance(commands, MinitGroup)


@pytest.mark.parametrize("path", ["", "run", "image", "image build"])
def test_help_is_a_command_too(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`minit help COMMAND` shows what `minit COMMAND --help` shows."""
    assert call(capsys, "help", *path.split()) == call(capsys, *path.split(), "--help")


def test_help_for_what_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown command is named, with the command that was meant."""
    assert call(capsys, "help", "image", "buidl") == (
        *(254, ""),
        'help: unknown command "buidl", did you mean build? (see minit help --help)\n',
    )


@pytest.mark.parametrize(("path", "command"), leaves(commands))
def test_every_command_has_examples(path: tuple[str, ...], command: click.Command) -> None:
    """The help of a command ends with examples, each of which is a line that the command's flags allow."""
    paragraph = (command.help or "").partition("\b\n")[2]
    examples = [line for line in paragraph.replace("\\\n", "").splitlines() if "minit " in line]
    assert examples
    for example in examples:
        words = example.partition("minit ")[2].split("  #")[0].split()
        flags = {name for parameter in command.params for name in parameter.opts} | {"--", "---"}
        before_arguments = " ".join(words).split(" -- ")[0].split()
        if tuple(words[: len(path)]) == path:
            assert {
                word.partition("=")[0].rstrip(")") for word in before_arguments if word.startswith("--")
            } <= flags, example


def test_files_of_stage1_images() -> None:
    """A stage1 image is named by its path, a URL of a file, or its name in the directory that rkt has for them."""
    assert choose_file("x.aci", None, None) == "x.aci"
    assert choose_file(None, "stage1-coreos.aci", None) == "/usr/lib/rkt/stage1-images/stage1-coreos.aci"
    assert choose_file(None, None, "file:///srv/x.aci") == choose_file(None, None, "file:/srv/x.aci") == "/srv/x.aci"
    assert choose_file(None, None, None) is None
