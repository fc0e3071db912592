"""minit.plan.streams: the limits of logs, and where k8s-plain writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import PlanError
from minit.manifest.pod import PodManifest, RuntimeApp
from minit.plan.streams import (
    plan_kubernetes_directory,
    plan_kubernetes_log,
    plan_log_directory,
    plan_log_files,
    plan_log_size,
    plan_lost_output,
    plan_streams,
)
from tests.support.planning import app_input

DIRECTORY, PATH = "minit/log-directory", "minit/log-path"
SIZE, FILES, LOST = "minit/log-max-size", "minit/log-max-files", "minit/lost-output"
EXPERIMENT = "coreos.com/rkt/experiment/"
STREAM = "coreos.com/rkt/stage2/"


def app(**annotations: str) -> RuntimeApp:
    """Return an app with these annotations."""
    return RuntimeApp(name="web", annotations=tuple(annotations.items()))


def manifest(*annotations: tuple[str, str]) -> PodManifest:
    """Return a pod with these annotations."""
    return PodManifest(ac_version="0.8.11", apps=(app(),), annotations=annotations)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("64Ki", 65536), ("10Mi", 10 << 20), ("1.5G", 1_500_000_000), ("100000", 100_000), ("0", 0)],
)
def test_sizes(text: str, size_bytes: int) -> None:
    """A size is a quantity of bytes; the app's own comes first."""
    assert plan_log_size(app(**{SIZE: text}), manifest((SIZE, "1Gi"))) == size_bytes
    assert plan_log_size(app(), manifest((SIZE, text))) == size_bytes
    assert plan_log_size(app(), manifest()) is None


@pytest.mark.parametrize("text", ["", "64", "65535", "-1Mi", "many", "1e18", "10MB"])
def test_bad_sizes(text: str) -> None:
    """The error says whose annotation it is, what is expected, and quotes what is there."""
    with pytest.raises(PlanError) as caught:
        plan_log_size(app(**{SIZE: text}), manifest())
    expected = 'expected a number of bytes such as "10Mi", at least 64Ki, or "0" for no limit'
    assert str(caught.value) == f'app "web": annotation minit/log-max-size: {expected}, got "{text}"'


@pytest.mark.parametrize(("text", "files"), [("1", 1), ("5", 5), ("100", 100)])
def test_numbers(text: str, files: int) -> None:
    """The number of files counts the one that is written to."""
    assert plan_log_files(app(**{FILES: text}), manifest((FILES, "7"))) == files
    assert plan_log_files(app(), manifest((FILES, text))) == files
    assert plan_log_files(app(), manifest()) is None


@pytest.mark.parametrize("text", ["", "0", "101", "-1", "+5", "²", "5 ", "1" * 5000])
def test_bad_numbers(text: str) -> None:
    """The error of the pod's annotation names no app."""
    with pytest.raises(PlanError) as caught:
        plan_log_files(app(), manifest((FILES, text)))
    assert str(caught.value) == f'annotation minit/log-max-files: expected a number from 1 to 100, got "{text}"'


def test_lost_output() -> None:
    """A pod that has lost output has failed, unless the app's annotation, or else the pod's, says otherwise."""
    assert plan_lost_output(app(), manifest())
    assert not plan_lost_output(app(), manifest((LOST, "ignore")))
    assert plan_lost_output(app(**{LOST: "fail"}), manifest((LOST, "ignore")))
    assert not plan_lost_output(app(**{LOST: "ignore"}), manifest((LOST, "fail")))
    with pytest.raises(PlanError, match='^app "web": annotation minit/lost-output: expected fail or ignore, got ""$'):
        plan_lost_output(app(**{LOST: ""}), manifest())
    with pytest.raises(PlanError, match='^annotation minit/lost-output: expected fail or ignore, got "true"$'):
        plan_lost_output(app(), manifest((LOST, "true")))


def test_the_directory_of_kubernetes() -> None:
    """It counts in the mode k8s-plain alone, which cannot do without."""
    directory = (f"{EXPERIMENT}kubernetes-log-dir", "/var/log/pods/x")
    mode = f"{EXPERIMENT}logmode"
    assert plan_kubernetes_directory(manifest(directory)) == (None, [])
    assert plan_kubernetes_directory(manifest(directory, (mode, "k8s-plain"))) == ("/var/log/pods/x", [])
    warning = f'warning: annotation {mode}: ignoring "other", the one mode is k8s-plain'
    assert plan_kubernetes_directory(manifest(directory, (mode, "other"))) == (None, [warning])
    with pytest.raises(PlanError, match="^kubernetes-log-dir annotation needs to be specified when k8s-plain"):
        plan_kubernetes_directory(manifest((mode, "k8s-plain")))
    with pytest.raises(PlanError, match="expected the absolute path of a directory, got"):
        plan_kubernetes_directory(manifest((directory[0], "logs"), (mode, "k8s-plain")))


@pytest.mark.parametrize(
    ("path", "name"), [("web_0.log", "web_0.log"), ("./a", "a"), ("x/../a", "a"), ("/a", "a"), ("..a", "..a")]
)
def test_the_file_of_kubernetes(path: str, name: str) -> None:
    """It is a direct child of the directory, however that is written."""
    annotations = {f"{STREAM}stdout": "stream", f"{EXPERIMENT}kubernetes-log-path": path}
    assert plan_kubernetes_log(app(**annotations)) == name


@pytest.mark.parametrize("path", ["", ".", "..", "../a", "a/b", "../../etc/passwd", "../log", "x/..", "a\0b"])
def test_path_traversal(path: str) -> None:
    """Any other place is refused in rkt's words."""
    annotations = {f"{STREAM}stdout": "stream", f"{EXPERIMENT}kubernetes-log-path": path}
    with pytest.raises(PlanError) as caught:
        plan_kubernetes_log(app(**annotations))
    assert str(caught.value) == 'app "web": log path is not inside /rkt/kubernetes/log, refusing path traversal'


def test_apps_without_streams() -> None:
    """An app that has no stream in mode `stream` needs no file, and one that has needs the annotation."""
    assert plan_kubernetes_log(app(**{f"{EXPERIMENT}kubernetes-log-path": "../x"})) is None
    with pytest.raises(PlanError) as caught:
        plan_kubernetes_log(app(**{f"{STREAM}stderr": "stream"}))
    assert str(caught.value) == (
        'app "web": kubernetes-log-path annotation needs to be specified when k8s-plain logging mode is used'
    )


@given(st.text(max_size=30))
def test_any_path_is_a_name_or_refused(path: str) -> None:
    """An accepted path is one name."""
    annotations = {f"{STREAM}stdout": "stream", f"{EXPERIMENT}kubernetes-log-path": path}
    try:
        name = plan_kubernetes_log(app(**annotations))
    except PlanError:
        return
    assert name not in (None, "", ".", "..")
    assert "/" not in name
    assert "\0" not in name


def test_a_log_of_the_host() -> None:
    """The app's path is below the pod's directory, and the size of the file is any."""
    pod = manifest((DIRECTORY, "/var/log/pods/x"), (SIZE, "1Mi"))
    assert plan_log_directory(pod, None) == "/var/log/pods/x"
    assert plan_log_directory(manifest(), "/kubernetes") == "/kubernetes"
    planned = plan_streams(app_input(app(**{PATH: "web/0.log"}), manifest=pod), in_kubernetes=False)
    assert (planned.log_path, planned.log_size_bytes, planned.log_files) == ("web/0.log", 0, 1)
    assert plan_streams(app_input(app(), manifest=pod), in_kubernetes=False).log_path is None


@pytest.mark.parametrize("path", ["", ".", "..", "/0.log", "../0.log", "web/../../0.log", "web/", "web//0.log", "a\0b"])
def test_bad_paths_of_logs(path: str) -> None:
    """A path is plain, and not out of the directory."""
    with pytest.raises(PlanError, match='^app "web": annotation minit/log-path: expected a path below the directory'):
        plan_streams(app_input(app(**{PATH: path}), manifest=manifest((DIRECTORY, "/logs"))), in_kubernetes=False)


def test_refused_logs_of_the_host() -> None:
    """A path needs a directory, of which there is one, and no two logs are one file."""
    with pytest.raises(PlanError, match="log-path: the pod has no annotation minit/log-directory$"):
        plan_streams(app_input(app(**{PATH: "0.log"}), manifest=manifest()), in_kubernetes=False)
    with pytest.raises(PlanError, match="log-directory: the log mode k8s-plain has another directory$"):
        plan_log_directory(manifest((DIRECTORY, "/logs")), "/kubernetes")
    with pytest.raises(PlanError, match='log-directory: expected the absolute path of a directory, got "logs"$'):
        plan_log_directory(manifest((DIRECTORY, "logs")), None)
    apps = tuple(RuntimeApp(name=name, annotations=((PATH, "0.log"),)) for name in ("web", "other"))
    pod = PodManifest(ac_version="0.8.11", apps=apps, annotations=((DIRECTORY, "/logs"),))
    with pytest.raises(PlanError, match='^app "web": annotation minit/log-path: another app has its log at "0.log"$'):
        plan_streams(app_input(apps[0], manifest=pod), in_kubernetes=False)
