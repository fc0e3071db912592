"""Compose files: variables, the merge, the long forms, the faults, and the tables of the documentation."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import ManifestError
from minit.compose.document import Sources, with_files
from minit.compose.interpolation import interpolate, parse_variables
from minit.compose.loading import LoadedProject, Where, load
from minit.compose.project import TABLES, find_circle, in_order, normal_name
from minit.compose.projectpods import ProjectPod, restarted_with, reversed_order
from minit.compose.tables import Service
from minit.compose.translate import (
    DEPENDS_LABEL,
    NUMBER_LABEL,
    SERVICE_LABEL,
    Unit,
    configuration_hash,
    pod_request,
    run_options,
)
from minit.manifest.image import parse_image_manifest
from minit.stage0.images.storedimage import StoredImage
from minit.stage0.pods.poddirectory import PodState
from tests.support.stage0_world import DEFAULT_APP, image_manifest

DOCUMENT = Path(__file__).parents[2] / "docs/compose.md"


def replaced(text: str, variables: Mapping[str, str]) -> tuple[str, list[str]]:
    """The text with variables, and the names of unset ones."""
    missing: list[str] = []
    return interpolate(text, variables.get, missing.append), missing


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$A-${A}", "1-1"),
        ("${B:-x}${B-x}", "x"),
        ("${C:-x}${C-x}", "xx"),
        ("${A:+y}${B:+y}${B+y}", "yy"),
        ("$$A $${A} $$$A", "$A ${A} $1"),
        ("${C:-${A}${D:-$$}}", "1$"),
        ("${C:-${D:-${A}}}.", "1."),
        ("$1 $ $-", "$1 $ $-"),
        ("${A:?never}", "1"),
    ],
)
def test_variables(text: str, result: str) -> None:
    """Every form of the specification, nested too."""
    assert replaced(text, {"A": "1", "B": ""})[0] == result


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("${C:?say C}", "the variable C is not set: say C"),
        ("${B:?}", "the variable B is empty"),
        ("${C?${A}}", "not set: 1"),
        ("${", "expected a }"),
        ("${A", "expected a }"),
        ("${A/b/c}", '"${A/b/c}" is no variable'),
        ("${}", "is no variable"),
    ],
)
def test_variables_that_are_none(text: str, fault: str) -> None:
    """A demand, and a form that the specification has not, are errors."""
    with pytest.raises(ManifestError, match=re.escape(fault)):
        replaced(text, {"A": "1", "B": ""})


_PARTS = st.recursive(
    st.one_of(
        st.text("abc {}", max_size=3).filter(lambda text: "}" not in text).map(lambda text: (text, text)),
        st.sampled_from((("$$", "$"), ("$SET", "value"), ("${SET}", "value"), ("${UNSET-}", ""))),
    ),
    lambda inner: st.lists(inner, max_size=3).map(
        lambda parts: ("${UNSET:-" + " ".join(part[0] for part in parts) + "}", " ".join(part[1] for part in parts))
    ),
    max_leaves=8,
)


@given(st.lists(_PARTS, max_size=4))
def test_nested_variables(parts: list[tuple[str, str]]) -> None:
    """A default is replaced as a text by itself, to any depth."""
    source = " ".join(part[0] for part in parts)
    assert replaced(source, {"SET": "value"}) == (" ".join(part[1] for part in parts), [])


@given(st.text())
def test_any_text_is_replaced_or_refused(text: str) -> None:
    """Nothing but a ManifestError comes of a text, and a text with all dollars doubled stays."""
    assert replaced(text.replace("$", "$$"), {})[0] == text
    try:
        replaced(text, {})
    except ManifestError:
        assert "$" in text


def test_files_of_variables() -> None:
    """Comments, quotes, escapes, names without a value, and variables of earlier lines."""
    text = "\n".join(
        [
            "# comment",
            "export A=1 # one",
            "B = two words  ",
            "C='$A # \\' x'",
            'D="$A\\n${B}\\$A"',
            "E=$A#2",
            "OUTER",
            "F:yaml",
            "G=",
            'H="two',
            'lines"',
        ]
    )
    assert parse_variables(text, ".env", {"OUTER": "o"}) == {
        "A": "1",
        "B": "two words",
        "C": "$A # ' x",
        "D": "1\ntwo words$A",
        "E": "1#2",
        "OUTER": "o",
        "F": "yaml",
        "G": "",
        "H": "two\nlines",
    }
    for wrong, fault in (("A=1\n=b", ".env:2: expected NAME=VALUE"), ('A="b', '.env:1: expected " at the end')):
        with pytest.raises(ManifestError, match=re.escape(fault)):
            parse_variables(wrong, ".env", {})


def project(tmp_path: Path, *texts: str, environment: Mapping[str, str] | None = None) -> LoadedProject:
    """The project of files of these texts, each over the earlier."""
    files = []
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.yaml").write_text(text)
        files.append(str(tmp_path / f"{number}.yaml"))
    notes: list[str] = []
    return load(Where(files=tuple(files), name="p"), environment or {}, notes.append)


def merged(tmp_path: Path, *texts: str) -> Service:
    """The service `a` of merged files."""
    return project(tmp_path, *texts).project.service("a")


BASE = """
services:
  a:
    image: one
    command: [echo, foo]
    environment: {A: "1", B: "2"}
    ports: ["80:80", "127.0.0.1:81:81"]
    volumes: ["foo:/work", "./x:/x"]
    dns: 1.1.1.1
    depends_on: [b]
    healthcheck: {test: "true", retries: 2}
    logging: {driver: json-file, options: {max-size: 1m}}
    labels: ["x=1"]
  b: {image: two}
volumes: {foo: , bar: }
"""


def test_the_merge(tmp_path: Path) -> None:
    """Mappings are merged, lists go on, commands are replaced, and mounts and ports are unique."""
    service = merged(
        tmp_path,
        BASE,
        """
services:
  a:
    command: echo "b ar"
    environment: ["B=3", C=4]
    ports: ["80:80/tcp", "8080:80"]
    volumes: ["bar:/work"]
    dns: [8.8.8.8]
    depends_on: {b: {condition: service_healthy}}
    healthcheck: {test: [CMD, "false"]}
    logging: {driver: none}
    labels: {y: 2}
""",
    )
    assert service.command == ("echo", "b ar")
    assert dict(service.environment) == {"A": "1", "B": "3", "C": "4"}
    assert [(port.published, port.host_ip) for port in service.ports] == [
        ("80", None),
        ("81", "127.0.0.1"),
        ("8080", None),
    ]
    assert [(each.source, each.target) for each in service.volumes] == [("bar", "/work"), (f"{tmp_path}/x", "/x")]
    assert service.dns == ("1.1.1.1", "8.8.8.8")
    assert dict(service.depends_on)["b"].condition == "service_healthy"
    assert service.healthcheck is not None
    assert (service.healthcheck.test, service.healthcheck.retries) == (("CMD", "false"), 2)
    assert (service.logging.driver, service.logging.options) == ("none", ())
    assert dict(service.labels) == {"x": "1", "y": "2"}


def test_reset_and_override(tmp_path: Path) -> None:
    """!reset takes a value away, !override replaces what would be merged."""
    service = merged(
        tmp_path,
        BASE,
        """
services:
  a:
    ports: !override ["443:443"]
    environment: {A: !reset null}
    volumes: !reset []
""",
    )
    assert [port.target for port in service.ports] == [443]
    assert dict(service.environment) == {"B": "2"}
    assert service.volumes == ()


_SCALARS = st.one_of(st.integers(0, 9), st.text("ab", max_size=2))
_LABELS = st.dictionaries(st.sampled_from("abcd"), _SCALARS, max_size=4)


@given(_LABELS, _LABELS, _LABELS)
def test_the_merge_of_mappings(one: dict[str, object], two: dict[str, object], three: dict[str, object]) -> None:
    """The last file with a name decides, as for dicts, whichever form each file has."""
    files = {}
    for number, labels in enumerate((one, two, three)):
        form: object = labels if number % 2 else [f"{name}={value}" for name, value in labels.items()]
        files[f"{number}.yaml"] = f"services: {{a: {{image: x, labels: {_flow(form)}}}}}"
    found = _read(files)
    expected = {name: str(value) for name, value in {**one, **two, **three}.items()}
    assert {name: str(value) for name, value in found.items()} == expected


def _flow(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f'{name}: "{item}"' for name, item in value.items()) + "}"
    assert isinstance(value, list)
    return "[" + ", ".join(f'"{item}"' for item in value) + "]"


def _read(files: Mapping[str, str]) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as directory:
        for name, text in files.items():
            Path(directory, name).write_text(text)
        document = Sources({}, lambda text: None).read([f"{directory}/{name}" for name in files], Path(directory))
    services = document["services"]
    assert isinstance(services, dict)
    labels: dict[str, object] = services["a"]["labels"]
    return labels


def test_extends_and_include(tmp_path: Path) -> None:
    """A service has what it extends, with paths of the other file's directory; included resources are the project's."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/.env").write_text("TAG=7\n")
    (tmp_path / "sub/common.yaml").write_text(
        "services: {base: {image: 'x:${TAG:-none}', volumes: ['./d:/d'], environment: {A: 1, B: 1}}}"
    )
    (tmp_path / "sub/other.yaml").write_text("services: {c: {image: 'c:${TAG}'}}\nvolumes: {v: {}}")
    found = project(
        tmp_path,
        "include: [sub/other.yaml]\n"
        "services: {a: {extends: {file: sub/common.yaml, service: base}, environment: {B: 2}}}",
    )
    service = found.project.service("a")
    assert service.image == "x:none" and dict(service.environment) == {"A": "1", "B": "2"}
    assert [each.source for each in service.volumes] == [f"{tmp_path}/sub/d"]
    assert found.project.service("c").image == "c:7"
    assert dict(found.project.volumes).keys() == {"v"}


def test_anchors_and_extensions(tmp_path: Path) -> None:
    """Merge keys of YAML are followed, what stands beside them wins, and x- keys are nobody's."""
    service = merged(
        tmp_path,
        "x-common: &common {image: one, environment: {A: 1}}\n"
        "services: {a: {<<: *common, image: two, x-y: 1}, b: {<<: [*common]}}",
    )
    assert (service.image, service.environment) == ("two", (("A", "1"),))


FAULTS = """
services:
  a:
    image: one
    portss: []
    gpus: all
    environment: {"a=b": 1}
    healthcheck: {interval: soon}
    volumes: ["gone:/x"]
    depends_on: [nobody]
    cap_add: [NET_ADMN]
    ulimits: {nofil: 1, nofile: "2:1", core: {soft: 1}}
  b: {}
"""


def test_all_faults_are_told(tmp_path: Path) -> None:
    """Each with file and line, and nearest names."""
    (tmp_path / "compose.yaml").write_text(FAULTS)
    notes: list[str] = []
    with pytest.raises(ManifestError) as raised:
        load(Where(files=(str(tmp_path / "compose.yaml"),)), {}, notes.append)
    told = [text.removeprefix(f"{tmp_path}/") for text in (*notes, str(raised.value))]
    assert told == [
        "compose.yaml:5: services.a.portss: no key of compose files: did you mean ports?",
        "compose.yaml:6: services.a.gpus: not supported: devices are named by `devices`",
        'compose.yaml:7: services.a.environment["a=b"]: expected the name of a variable, got 1',
        'compose.yaml:8: services.a.healthcheck.interval: expected a duration, as in 1m30s, got "soon"',
        'compose.yaml:11: services.a.cap_add[0]: expected a capability, perhaps CAP_NET_ADMIN, got "NET_ADMN"',
        "compose.yaml:12: services.a.ulimits.nofil: expected a name of run --ulimit",
        'compose.yaml:12: services.a.ulimits.nofile: the soft limit is above the hard one in "2:1"',
        'compose.yaml:12: services.a.ulimits.core: expected a number, or the keys soft and hard, got {"soft":1}',
        "compose.yaml:10: services.a.depends_on: there is no service nobody",
        "compose.yaml:9: services.a.volumes: gone is not among the volumes at the top of the file",
        "compose.yaml:13: services.b.image: expected image or build",
    ]


def test_profiles_and_dependencies(tmp_path: Path) -> None:
    """Services of profiles are left out, unless they are named or needed; each comes after what it depends on."""
    found = project(
        tmp_path,
        "services: {a: {image: x, depends_on: [c]}, b: {image: x, profiles: [debug]}, c: {image: x, profiles: [c]}}",
    )
    assert [service.name for service in found.chosen(())] == ["c", "a"]
    assert [service.name for service in found.chosen(("b",))] == ["b"]
    assert [service.name for service in found.chosen(("a",), alone=True)] == ["a"]


@given(st.permutations("abcde"), st.sets(st.tuples(st.sampled_from("abcde"), st.sampled_from("abcde")), min_size=1))
def test_order(names: list[str], pairs: set[tuple[str, str]]) -> None:
    """Every service comes after those that it links to, in whatever order the file has them; a circle is found."""
    edges = {name: [later for earlier, later in sorted(pairs) if earlier == name < later] for name in names}
    assert find_circle(edges) == []
    services = {name: Service(name=name, links=tuple(others)) for name, others in edges.items()}
    ordered = in_order(services)
    assert sorted(ordered) == sorted(services)
    for name, others in edges.items():
        assert all(ordered.index(other) < ordered.index(name) for other in others)
    first, last = ordered[-1], ordered[0]
    circle = find_circle({**edges, last: [*edges[last], first], first: [*edges[first], last]})
    assert circle[0] == circle[-1] and len(circle) > 1


def test_names_and_environments(tmp_path: Path) -> None:
    """A directory's name is made fit, and the caller's variables go before those of files."""
    assert normal_name("_My App.1") == "myapp1"
    (tmp_path / "a").write_text("A=1\nB=$A$C\n")
    assert with_files({"A": "0", "C": "c"}, [str(tmp_path / "a")]) == {"A": "0", "B": "0c", "C": "c"}


def test_the_tables_of_the_documentation() -> None:
    """docs/compose.md has every key, with what becomes of it, and no other."""
    told: dict[str, dict[str, tuple[str, str]]] = {}
    title = ""
    for line in DOCUMENT.read_text().partition("## Keys")[2].splitlines():
        if line.startswith("### "):
            title = line.removeprefix("### ")
            told[title] = {}
        elif match := re.fullmatch(r"\| `(\w+)` \| ([\w ]+) \| (.*) \|", line):
            told[title][match[1]] = (match[2], match[3])
    assert {title: {name: words[0] for name, words in rows.items()} for title, rows in told.items()} == {
        title: {name: str(key.support) for name, key in keys.items()} for title, keys in TABLES.items()
    }
    for title, keys in TABLES.items():
        assert all(told[title][name][1] == key.why for name, key in keys.items() if key.why)


def stored_image() -> StoredImage:
    """An image of the store with the program `/bin/sh -c true`."""
    text = json.dumps(image_manifest("example.com/a", DEFAULT_APP)).encode()
    manifest = parse_image_manifest(text, "image")
    return StoredImage(
        id="sha512-0", manifest=manifest, manifest_bytes=text, size_bytes=0, import_time_ns=0, last_used_ns=0
    )


FULL = """
services:
  a:
    image: x
    entrypoint: run
    command: "--a 'b c'"
    user: "7:8"
    cap_add: [NET_ADMIN]
    cap_drop: [ALL]
    mem_limit: 64m
    memswap_limit: 64m
    deploy: {resources: {limits: {cpus: "0.5", pids: 9}}}
    cpuset: "0-1"
    restart: on-failure:3
    stop_signal: INT
    stop_grace_period: 1m
    read_only: true
    privileged: false
    security_opt: ["no-new-privileges:true"]
    sysctls: [net.core.somaxconn=9]
    shm_size: 1m
    ulimits: {nofile: {soft: 512, hard: 1024}, nproc: 64, core: "-1"}
    logging: {options: {max-size: 1m, max-file: 3}}
    healthcheck: {test: [CMD, check], interval: 10s, retries: 2, start_period: 5s, start_interval: 1s}
    volumes: ["v:/v:ro", {type: tmpfs, target: /t, tmpfs: {size: 1k}}, {type: volume, source: v, target: /w,
      volume: {subpath: part}}]
    ports: ["127.0.0.1:8080:80/udp"]
    dns: 1.1.1.1
    extra_hosts: ["name:10.0.0.1", "name6=[::1]"]
    networks: {one: {aliases: [other], ipv4_address: 10.9.0.5}}
    pre_stop: [{command: bye}]
    tty: true
    stdin_open: true
volumes: {v: {name: own}}
networks: {one: }
"""


def test_the_request_for_a_pod(tmp_path: Path) -> None:
    """Keys of a service are settings of the pod and its app."""
    loaded = project(tmp_path, FULL)
    service = loaded.project.service("a")
    unit = Unit(
        project=loaded.project,
        service=service,
        number=1,
        image=stored_image(),
        environment=loaded.variables_of(service),
        labels=(),
        ports=((service.ports[0], 8080),),
        contents={},
    )
    request, volumes = pod_request(unit)
    app = request.apps[0].overrides
    assert (app.exec, app.arguments, app.user, app.group) == ("run", ("--a", "b c"), "7", "8")
    assert app.read_only_root_fs and (app.stdin, app.stdout) == ("tty", "log+tty")
    isolators = {isolator.name: isolator.value for isolator in app.isolators}
    assert [*app.added_capabilities, *app.dropped_capabilities] == ["CAP_NET_ADMIN", "CAP_ALL"]
    assert isolators["resource/memory"] == {"default": False, "request": "67108864", "limit": "67108864"}
    assert isolators["resource/cpu"] == {"default": False, "request": "0.5", "limit": "0.5"}
    assert isolators["os/linux/no-new-privileges"] is True
    annotations = dict(app.annotations)
    assert annotations["minit/restart"] == "on-failure" and annotations["minit/restart-limit"] == "3"
    assert annotations["minit/stop-signal"] == "INT" and annotations["minit/pids-limit"] == "9"
    assert json.loads(annotations["minit/limits"]) == {"cpus": "0-1", "swap": 0}
    assert json.loads(annotations["minit/ulimits"]) == {"nofile": "512:1024", "nproc": "64", "core": "unlimited"}
    assert (annotations["minit/log-max-size"], annotations["minit/log-max-files"]) == ("1048576", "3")
    assert json.loads(annotations["minit/hooks"]) == {"pre-stop": {"exec": ["bye"]}}
    assert json.loads(annotations["minit/mounts"]) == {"/w": {"subPath": "part"}}
    assert json.loads(annotations["minit/health"]) == {
        "startup": {
            "exec": ["check"],
            "asApp": True,
            "timeout": "30s",
            "interval": "1s",
            "failures": 25,
            "action": "none",
        },
        "readiness": {"exec": ["check"], "asApp": True, "timeout": "30s", "interval": "10s", "failures": 2},
    }
    pod = dict(request.annotations)
    assert (pod["minit/stop-grace"], pod["minit/shm-size"]) == ("1m0s", "1048576")
    assert pod["minit/pod-aliases"] == "a,p_one:other"
    assert json.loads(pod["minit/sysctls"]) == {
        "net.ipv4.ip_unprivileged_port_start": "0",
        "net.core.somaxconn": "9",
    }
    assert json.loads(pod["minit/memory-volumes"]) == {"v1": {"size": "1024"}}
    assert [(volume.volume.kind, volume.volume.source) for volume in volumes] == [
        ("named", "own"),
        ("empty", None),
        ("named", "own"),
    ]
    [port] = request.ports
    assert port.pod_port is not None
    assert (port.host_ip, port.host_port, port.pod_port.port, port.pod_port.protocol) == ("127.0.0.1", 8080, 80, "udp")
    options = run_options(unit)
    assert options.networks == ("p_one:IP=10.9.0.5",)
    assert options.name_service.host_names == (("10.0.0.1", ("name",)), ("::1", ("name6",)))


def test_what_makes_a_pod_anew(tmp_path: Path) -> None:
    """The hash of a service changes with what its pod is made of, and not with what is about up alone."""
    base = project(tmp_path, FULL)

    def hash_of(text: str) -> str:
        found = project(tmp_path, text)
        service = found.project.service("a")
        return configuration_hash(found.project, service, found.variables_of(service), {})

    assert base.project.name == "p"
    same = FULL.replace("image: x", "image: x\n    depends_on: {}\n    profiles: [more]\n    pull_policy: always")
    assert hash_of(FULL) == hash_of(same)
    text = FULL.replace("image: x", "image: x\n    environment: {A: 1}")
    assert len({hash_of(FULL), hash_of(text), hash_of(text.replace("A: 1", "A: 2"))}) == 3
    for old, new in (("7:8", "7:9"), ("name: own", "name: other"), ("cpus: ", "memory: 1g, cpus: "), ("bye", "by")):
        assert hash_of(FULL) != hash_of(FULL.replace(old, new))


def pod_of(service: str, depends: str, number: int = 1) -> ProjectPod:
    """A running pod of a service."""
    labels = {SERVICE_LABEL: service, NUMBER_LABEL: str(number), DEPENDS_LABEL: depends}
    return ProjectPod(uuid=f"{service}{number}", state=PodState.RUNNING, name=None, labels=labels)


def test_the_order_of_stops() -> None:
    """Pods come before those that they depend on, and the last of a service first; a restart takes dependents along."""
    pods = [
        pod_of("db", ""),
        pod_of("web", "db:service_started:true", 1),
        pod_of("web", "db:service_started:true", 2),
        pod_of("top", "web:service_healthy:false,gone:service_started:false"),
    ]
    assert [pod.uuid for pod in reversed_order(pods)] == ["top1", "web2", "web1", "db1"]
    assert restarted_with(pods, ["db"]) == ["db", "web"]
    assert restarted_with(pods, ["web"]) == ["web"]


@pytest.mark.parametrize(
    ("text", "forms"),
    [
        ("80", [(80, None, None, "tcp")]),
        ("8080:80/udp", [(80, "8080", None, "udp")]),
        ("127.0.0.1::80", [(80, None, "127.0.0.1", "tcp")]),
        ("[::1]:8080:80", [(80, "8080", "::1", "tcp")]),
        ("3000-3001", [(3000, None, None, "tcp"), (3001, None, None, "tcp")]),
        ("3000-3001:4000-4001", [(4000, "3000", None, "tcp"), (4001, "3001", None, "tcp")]),
        ("3000-3005:80", [(80, "3000-3005", None, "tcp")]),
    ],
)
def test_ports(tmp_path: Path, text: str, forms: list[tuple[int, str | None, str | None, str]]) -> None:
    """The short syntax is any of the specification's."""
    service = merged(tmp_path, f'services: {{a: {{image: x, ports: ["{text}"]}}}}')
    assert [(port.target, port.published, port.host_ip, port.protocol) for port in service.ports] == forms


@pytest.mark.parametrize("text", ["", "x", "80:", "0", "70000", "5-3", "1-3:4-5", "1.2.3:80:80", "80/icmp"])
def test_ports_that_are_none(tmp_path: Path, text: str) -> None:
    """Another text is an error with its line."""
    with pytest.raises(ManifestError, match=r"0\.yaml:1: "):
        merged(tmp_path, f'services: {{a: {{image: x, ports: ["{text}"]}}}}')
