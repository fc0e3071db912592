"""Hooks of a Kubernetes container, as the annotation by which minit's stage1 runs them."""

from __future__ import annotations

from minit import jsontext
from minit.stage0.kubernetes.reading.fields import Fields, read_text

_HOOKS = {"postStart": "post-start", "preStop": "pre-stop"}
_MOST_SECONDS = 365 * 24 * 3600

Json = dict[str, object]


def read_hooks(lifecycle: Fields, *, of_init: bool) -> str | None:
    """
    Return the value of the annotation `minit/hooks` for the hooks of a container, None without any.

    One of those that run before the others, and end, has none.
    """
    hooks: Json = {}
    for field, name in _HOOKS.items():
        if lifecycle[field].given and of_init:
            raise lifecycle[field].error("no hook of an init container without restartPolicy: Always")
        if lifecycle[field].given:
            hooks[name] = _read_hook(lifecycle.within(field))
    return jsontext.dump(hooks).decode("ascii") if hooks else None


def _read_hook(fields: Fields) -> Json:
    with fields:
        for field in ("httpGet", "tcpSocket"):
            if fields[field].given:
                fields.findings.refuse(fields[field], "a hook is a command of the container, exec, or sleep")
                return {}
        if fields["exec"].given == fields["sleep"].given:
            raise fields.node.error("one of exec and sleep")
        if fields["sleep"].given:
            with fields.within("sleep") as sleep:
                return {"sleep": f"{sleep['seconds'].integer(0, _MOST_SECONDS)}s"}
        with fields.within("exec") as command:
            words = command["command"].each(read_text)
            if not (words and words[0]):
                raise command["command"].error("a command and its arguments")
            return {"exec": list(words)}
