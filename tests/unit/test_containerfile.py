"""Containerfiles: instructions, words, ignored files and stages, as other builders have them."""

from __future__ import annotations

import fnmatch
import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import ImageError
from minit.containerfile.ignore import parse_ignored
from minit.containerfile.parse import Instruction, parse
from minit.containerfile.plan import Plan, plan
from minit.containerfile.state import Action, Copy, Directories, Run, State, advance
from minit.containerfile.words import expand, split_words

VARIABLES = {"name": "web", "empty": "", "path": "/a b"}


def instructions(text: str) -> tuple[Instruction, ...]:
    """Return the instructions of a file named F."""
    return parse(text, "F")


def planned(text: str, *given: tuple[str, str], target: str | None = None) -> Plan:
    """Return the plan of a file named F."""
    return plan(instructions(text), "F", given, target)


def after(text: str, state: State | None = None) -> tuple[State, list[Action]]:
    """Return the state after all instructions, and what was to be done."""
    state = State(config={}) if state is None else state
    actions = []
    for instruction in instructions(text):
        state, action = advance(state, instruction)
        actions += [] if action is None else [action]
    return state, actions


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$name", "web"),
        ("${name}s", "webs"),
        ("a$name-b", "aweb-b"),
        ("$none.", "."),
        ("$", "$"),
        ("$$name", "$web"),
        (r"\$name", "$name"),
        ("'$name'", "$name"),
        ('"$name x"', "web x"),
        (r'"\"\$name\\"', r'"$name' + "\\"),
        (r'"\n"', r"\n"),
        (r"a\ b", "a b"),
        ("${none:-x y}", "x y"),
        ("${none-x}${empty-x}", "x"),
        ("${empty:-x}", "x"),
        ("${name:+x}${empty:+y}${empty+z}", "xz"),
        ("${none:-${name:-a}}", "web"),
        ("${name:?gone}", "web"),
        ("${path}/c", "/a b/c"),
    ],
)
def test_words_are_expanded_as_docker_does(text: str, expanded: str) -> None:
    """Variables, quotes and escapes have the meaning that they have to other builders."""
    assert expand(text, VARIABLES) == expanded


@pytest.mark.parametrize("text", ["${name", "${}", "${name%x}", "'x", '"x', "${none?it is gone}", "${" + "a:-${" * 30])
def test_words_of_no_form_are_refused(text: str) -> None:
    """A word without an end, or in a form that is not known, is no word."""
    with pytest.raises(ImageError):
        expand(text, VARIABLES)


@given(st.text(alphabet="ab$ {}:-+?'\"\\", max_size=30))
def test_any_word_is_expanded_or_refused(text: str) -> None:
    """No text does anything but give a word or an ImageError."""
    for word in split_words(text):
        try:
            expand(word, VARIABLES)
        except ImageError:
            pass


def test_lines_that_go_on() -> None:
    """A line goes on after a backslash, over comments and empty lines; the directive escape changes the sign."""
    text = "FROM a\nRUN one && \\\n  # why\n\n  two \\  \n  three\n#RUN no\nrun four\\\\\nCMD five\n"
    found = instructions(text)
    assert [(one.name, one.line) for one in found] == [("FROM", 1), ("RUN", 2), ("RUN", 8), ("CMD", 9)]
    assert found[1].rest.split() == ["one", "&&", "two", "three"]
    assert found[2].rest == "four\\\\"
    (only,) = instructions("# syntax=docker/dockerfile:1\n# Escape = `\nRUN dir c:\\ `\r\n next")
    assert only.rest == "dir c:\\  next"


def test_here_documents() -> None:
    """Several documents of one instruction, with quoted names, tabs taken away, and lines that look like others."""
    text = 'FROM a\nRUN <<-A cat <<"B" - <<3\n\tone $x\n# kept\n\tA\ntwo\\\nB\n3\nCOPY ["<<A", "/x"]\n'
    with pytest.raises(ImageError, match=r"^F:2: the here-document has no end"):
        instructions(text.replace("\n3\n", "\n"))
    run = instructions(text)[1]
    assert [(one.name, one.content, one.expands) for one in run.documents] == [
        ("A", "one $x\n# kept\n", True),
        ("B", "two\\\n", False),
        ("3", "", True),
    ]
    assert instructions(text)[2].documents == ()
    _, actions = after("RUN <<EOF\necho a\nEOF\nRUN cat <<EOF > /x\n$y\nEOF")
    assert [action.command[-1] for action in actions if isinstance(action, Run)] == [
        "echo a\n",
        "cat <<EOF > /x\n$y\nEOF",
    ]


def test_an_image_becomes_what_the_instructions_say() -> None:
    """Every instruction about the configuration leaves its field, in Docker's form."""
    text = (
        'ENV A="b c" D=e\\ f\nENV OLD form of $A\nLABEL one=1 "two words"="$A"\nWORKDIR /srv\nWORKDIR deep/../www\n'
        'USER web:www\nEXPOSE 80 53/udp 8000-8001\nVOLUME /data /x\nVOLUME ["/y"]\nSTOPSIGNAL SIGINT\n'
        'SHELL ["/bin/bash", "-ec"]\nCMD run $A\nENTRYPOINT ["/init"]\nMAINTAINER a b <c@d>\n'
        "HEALTHCHECK --interval=1m30s --retries=3 CMD curl localhost\nONBUILD RUN echo $later\n"
    )
    state, actions = after(text)
    assert state.config == {
        "Env": ["A=b c", "D=e f", "OLD=form of b c"],
        "Labels": {"one": "1", "two words": "b c"},
        "WorkingDir": "/srv/www",
        "User": "web:www",
        "ExposedPorts": {"80/tcp": {}, "53/udp": {}, "8000/tcp": {}, "8001/tcp": {}},
        "Volumes": {"/data": {}, "/x": {}, "/y": {}},
        "StopSignal": "SIGINT",
        "Shell": ["/bin/bash", "-ec"],
        "Cmd": ["/bin/bash", "-ec", "run $A"],
        "Entrypoint": ["/init"],
        "Healthcheck": {"Test": ["CMD-SHELL", "curl localhost"], "Interval": 90_000_000_000, "Retries": 3},
        "OnBuild": ["RUN echo $later"],
    }
    assert state.author == "a b <c@d>"
    assert actions == [
        Directories(paths=("/srv",), user=""),
        Directories(paths=("/srv/www",), user=""),
        Directories(paths=("/data", "/x"), user=""),
        Directories(paths=("/y",), user=""),
    ]
    # The command of a base is for another entrypoint.
    based = State(config={"Cmd": ["sh"], "Entrypoint": ["x"]})
    assert after("ENTRYPOINT y", based)[0].config == {"Entrypoint": ["/bin/sh", "-c", "y"]}
    assert after("CMD []", based)[0].config == {"Cmd": [], "Entrypoint": ["x"]}


def test_arguments_and_variables() -> None:
    """A variable goes before an argument of the same name, and a value of the user before a default."""
    state = State(config={"Env": ["FROM_BASE=1"]}, given=(("B", "user"), ("http_proxy", "p")), defaults=(("G", "all"),))
    state, actions = after('ARG A=$FROM_BASE\nARG B=no C G\nENV B=env$B\nRUN x\nRUN --network=none ["a", "b"]', state)
    shell, plain = (action for action in actions if isinstance(action, Run))
    assert shell.command == ("/bin/sh", "-c", "x")
    environment = dict(shell.environment)
    assert environment == {"http_proxy": "p", "A": "1", "B": "envuser", "G": "all", "FROM_BASE": "1"}
    assert (plain.command, plain.network) == (("a", "b"), "none")
    assert state.config["Env"] == ["FROM_BASE=1", "B=envuser"]


def test_copies() -> None:
    """Sources and destination of COPY and ADD: relative to the working directory, with flags, lists and documents."""
    text = (
        "WORKDIR /srv\nCOPY a b* ./\nADD --chown=1:2 --chmod=755 x.tar /y\n"
        'COPY --from=web ["a b", "c"]\nCOPY <<one <<"two" t/\n$A\none\n$A\ntwo\n'
    )
    _, actions = after(text, State(config={"Env": ["A=v"]}))
    several, added, named, made = (action for action in actions if isinstance(action, Copy))
    assert (several.sources, several.target, several.unpacks) == (("a", "b*"), "/srv/", False)
    assert (added.owner, added.mode, added.target, added.unpacks) == ("1:2", 0o755, "/y", True)
    assert (named.origin, named.sources, named.target) == ("web", ("a b",), "/srv/c")
    assert [(one.name, one.content) for one in made.documents] == [("one", "v\n"), ("two", "$A\n")]


# In the shapes that Dockerfiles of public projects have; of those projects' own lines there is none.
FORMS = (
    r"""
FROM debian:bookworm-slim
FROM --platform=$BUILDPLATFORM golang:1.22-alpine AS builder
FROM registry.example.com:5000/team/base@sha256:{digest}
FROM ${{REGISTRY:-docker.io}}/library/node:${{NODE:-20}} as deps
from scratch
ARG VERSION
ARG VERSION=1.2.3 COMMIT
ARG DEBIAN_FRONTEND=noninteractive
ARG CMAKE_FLAGS="-DCMAKE_BUILD_TYPE=Release -DX=ON"
ARG URL=https://example.com/${{VERSION}}.tar.gz
ENV LANG=C.UTF-8
ENV LANG C.UTF-8
ENV PATH="/opt/venv/bin:$PATH" VIRTUAL_ENV=/opt/venv
ENV PATH /usr/local/go/bin:$PATH
ENV JAVA_OPTS="-Xmx512m -Dx='a b'"
ENV EMPTY=
ENV PS1='\u@\h:\w\$ '
ENV A=${{B:-c}} D=${{E:+f}}
ENV PYTHONUNBUFFERED=1 \
RUN apt-get update && apt-get install -y --no-install-recommends curl && rm -rf /var/lib/apt/lists/*
RUN apk add --no-cache --virtual .build-deps gcc musl-dev
RUN set -eux; groupadd -r app --gid=999; useradd -r -g app --uid=999 app
RUN ["/bin/bash", "-c", "source /opt/setup.sh && make"]
RUN [ "npm", "ci", "--omit=dev" ]
RUN [ -f /etc/x ] || touch /etc/x
RUN [[ -n "$X" ]] && echo "$X"
RUN --mount=type=cache,target=/root/.cache/pip pip install -r requirements.txt
RUN --mount=type=cache,id=apt,sharing=locked,target=/var/cache/apt --mount=type=tmpfs,target=/tmp make
RUN --mount=target=/go/pkg/mod,type=cache go build ./...
RUN --mount=type=bind,target=. --mount=type=cache,target=/go/pkg/mod/ go build -o /bin/server .
RUN --mount=type=bind,source=package.json,target=package.json --mount=type=cache,target=/root/.npm npm ci
RUN --network=none make test
RUN for i in 1 2 3; do echo $i; done
RUN echo 'deb http://example.com/debian stable main' > /etc/apt/sources.list.d/x.list
RUN echo "a\\tb" | tee /x
RUN mkdir -p /a/{{b,c}} && chmod 0777 /a
RUN curl -fsSL https://example.com/install.sh | sh -s -- --yes
RUN python3 -c 'import sys; print(sys.version)'
RUN sed -i 's/^#\(.*\)$/\1/' /etc/conf
RUN case "$(uname -m)" in x86_64) A=amd64 ;; aarch64) A=arm64 ;; esac; echo $A
RUN ln -sf /dev/stdout /var/log/access.log \
RUN true
COPY . .
COPY . /usr/src/app
COPY package*.json ./
COPY package.json yarn.lock ./
COPY ["file with space", "/target dir/"]
COPY --chown=node:node . .
COPY --chown=1000:1000 --chmod=0755 entrypoint.sh /usr/local/bin/
COPY --chown=$USER_ID src /src
COPY --from=builder /app/dist ./dist
COPY --from=0 /go/bin/* /usr/local/bin/
COPY --from=ghcr.io/example/tool:latest /tool /bin/tool
COPY --link --from=builder /a /b
COPY ./docker/entrypoint.sh /
COPY src/*.py tests/[a-z]*.py /app/
COPY *.csproj .
COPY config.${{ENVIRONMENT:-dev}}.json /etc/app/config.json
COPY target/${{JAR}} app.jar
COPY --chmod=644 nginx.conf /etc/nginx/nginx.conf
ADD . /code
ADD rootfs.tar.xz /
ADD app.tar.gz /opt/
ADD --chown=app:app files/ /srv/
ADD scripts/*.sh /usr/local/bin/
COPY package.json yarn.lock* package-lock.json* ./
COPY main.conf local*.conf /etc/main.conf
ADD ["a", "/b/"]
WORKDIR /app
WORKDIR src
WORKDIR $HOME/work
WORKDIR ${{APP_ROOT:-/srv}}/www
WORKDIR "/with space"
USER nobody
USER 1000
USER 1000:1000
USER app:app
USER ${{UID:-1000}}:${{GID:-1000}}
EXPOSE 80
EXPOSE 80 443
EXPOSE 8080/tcp 53/udp
EXPOSE 3000-3010
EXPOSE $PORT
EXPOSE ${{PORT:-8080}}/tcp
VOLUME /data
VOLUME ["/data", "/logs"]
VOLUME /var/lib/a /var/lib/b
VOLUME ["$DATA"]
LABEL maintainer="someone@example.com"
LABEL version=1.0 description="a b"
LABEL org.opencontainers.image.source=https://example.com/repo org.opencontainers.image.version=$VERSION
LABEL "com.example.vendor"="A B"
LABEL maintainer Some One <a@example.com>
LABEL a="one" \
MAINTAINER Some One <a@example.com>
CMD ["ruby", "app.rb"]
CMD ruby app.rb
CMD ["sh", "-c", "exec node $APP"]
CMD []
CMD [ "npm", "start" ]
CMD exec gunicorn --bind :$PORT --workers 1 main:app
CMD ["--help"]
ENTRYPOINT ["/entrypoint.sh"]
ENTRYPOINT ["tini", "--", "node"]
ENTRYPOINT exec java $JAVA_OPTS -jar /app.jar
ENTRYPOINT []
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
STOPSIGNAL SIGQUIT
STOPSIGNAL 9
HEALTHCHECK NONE
HEALTHCHECK CMD curl -f http://localhost/ || exit 1
HEALTHCHECK --interval=30s --timeout=3s --start-period=5s --retries=3 CMD ["/check", "-q"]
HEALTHCHECK --interval=5m CMD wget -qO- localhost:$PORT || exit 1
ONBUILD COPY . /app
ONBUILD RUN make
ONBUILD ARG X=1
""".format(digest="0" * 64)
    .strip()
    .splitlines()
)


@pytest.mark.parametrize("line", FORMS)
def test_forms_of_public_projects_are_planned(line: str) -> None:
    """Each form of an instruction that public projects have is planned, with lines that go on behind it."""
    before = "ARG ENVIRONMENT\nFROM base AS builder\n"
    text = f"{before}{line}\n" + ("  # and\n  more=1\n" if line.endswith("\\") else "")
    assert planned(text).steps == len(text.replace("\n  ", " ").splitlines()) - 1 or line.lower().startswith("from")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "F: no FROM: nothing to build"),
        ("RUN x", "F:1: RUN: stands before the first FROM"),
        ("FROM a\nFETCH x", "F:2: FETCH: unknown instruction"),
        ("FROM a b", "F:1: FROM: expected FROM IMAGE [AS NAME]"),
        ("FROM $x", 'F:1: FROM: "$x" is empty: give the argument with --build-arg'),
        ("FROM --platform=plan9/mips a", "F:1: FROM: --platform=plan9/mips: only images for this machine"),
        ("FROM a\n\nRUN --security=insecure x", "F:3: RUN: --security is not supported"),
        ("FROM a\nRUN --mount=type=ssh x", "F:2: RUN: --mount=type=ssh is not supported"),
        ("FROM a\nRUN --mount=type=secret,id=x,target=/x x", "F:2: RUN: --mount=type=secret is not supported"),
        ("FROM a\nRUN --mount=source=a x", "F:2: RUN: --mount=source=a: no target"),
        ("FROM a\nRUN --mount=type=tmpfs,target=/x,id=y x", "F:2: RUN: --mount=type=tmpfs,target=/x,id=y: id is not"),
        ('FROM a\nCMD ["sleep", 5]', "F:2: CMD: a list has words in double quotes alone"),
        ("FROM a\nRUN --network=web x", "F:2: RUN: --network=web: expected one of"),
        ("FROM a\nCOPY a", "F:2: COPY: expected at least one source"),
        ("FROM a\nCOPY a b c", "F:2: COPY: with several sources the destination"),
        ("FROM a\nCOPY --parents a /b", "F:2: COPY: --parents is not supported"),
        ("FROM a\nCOPY --chmod=u+x a /b", "F:2: COPY: --chmod=u+x: expected an octal number"),
        ("FROM a\nADD https://a/b /c", "F:2: ADD: https://a/b: minit downloads nothing"),
        ("FROM a\nENV x", 'F:2: ENV: expected NAME=VALUE, got "x"'),
        ("FROM a\nEXPOSE 99999", 'F:2: EXPOSE: expected PORT or PORT/PROTOCOL, got "99999"'),
        ("FROM a\nSHELL bash", "F:2: SHELL: expected a list"),
        ("FROM a\nONBUILD FROM b", "F:2: ONBUILD: FROM in ONBUILD means nothing"),
        ("FROM a\nHEALTHCHECK --interval=soon CMD x", "F:2: HEALTHCHECK: --interval=soon: expected a duration"),
        ("FROM a\nRUN", "F:2: RUN: needs an argument"),
        ("FROM a\nRUN <<EOF\n#!/usr/bin/perl\nEOF", "F:2: RUN: a here-document with an own interpreter"),
    ],
)
def test_the_unsupported_is_refused_by_line(text: str, message: str) -> None:
    """What cannot be built is told before anything is built, by file, line and instruction."""
    with pytest.raises(ImageError) as caught:
        planned(text)
    assert str(caught.value).startswith(message)


def test_only_needed_stages_are_planned() -> None:
    """The stages are those that the wanted one is made of; another one may have whatever it has."""
    text = (
        "ARG V=1\nFROM base:$V AS build\nFROM other\nFETCH it\nFROM build AS Mid\nCOPY --from=0 /a /b\n"
        "FROM scratch\nCOPY --from=mid --link /a /b\nCOPY --from=busybox:1 /c /d\n"
    )
    assert [(stage.number, stage.base) for stage in planned(text).stages] == [(0, "base:1"), (2, 0), (3, "scratch")]
    assert [stage.base for stage in planned(text, ("V", "2"), target="build").stages] == ["base:2"]
    assert planned(text, ("W", "2"), ("V", "3")).unused == ("W",)
    with pytest.raises(ImageError, match='no stage "none": there is build, 1, mid, 3'):
        planned(text, target="none")


@pytest.mark.parametrize(
    ("lines", "path", "is_out"),
    [
        ("*.o", "a.o", True),
        ("*.o", "src/a.o", False),
        ("**/*.o", "src/deep/a.o", True),
        ("**/*.o", "a.o", True),
        ("src", "src/deep/a", True),
        ("/src/", "src/a", True),
        ("./src/../lib", "lib/a", True),
        ("*\n!keep", "keep/a", False),
        ("*\n!keep\nkeep/a", "keep/a", True),
        ("# a\n\n?.c", "a.c", True),
        ("[a-c]x", "bx", True),
        ("[^a-c]x", "bx", False),
        ("a**b", "axx/yb", True),
        (r"\*", "x", False),
        (".git", ".gitignore", False),
        ("docs/**", "docs", False),
    ],
)
def test_ignored_files(lines: str, path: str, is_out: bool) -> None:
    """A pattern fits a path or a directory above the path, and the last one that fits decides."""
    assert parse_ignored(lines, "I").leaves_out(path) is is_out


@given(st.lists(st.text(alphabet="ab*?", min_size=1, max_size=4), min_size=1, max_size=3), st.text("ab", min_size=1))
def test_simple_patterns_are_those_of_shells(names: list[str], name: str) -> None:
    """Without two stars, names and exceptions, a pattern of one name fits as in a shell."""
    patterns = [pattern for pattern in names if "**" not in pattern]
    expected = any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    assert parse_ignored("\n".join(patterns), "I").leaves_out(name) is expected
    assert parse_ignored("\n".join(patterns), "I").leaves_out(posixpath.join(name, "below")) is expected


@given(st.text(alphabet="FROMUN a\n\\#<EF$-=[]\"'", max_size=80))
def test_any_text_is_planned_or_refused(text: str) -> None:
    """No text does anything but give a plan or one line of an ImageError."""
    try:
        planned("FROM a\n" + text)
    except ImageError as error:
        assert str(error).startswith("F:")
