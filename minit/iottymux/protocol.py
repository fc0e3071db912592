"""
The messages of a client attaching to the streams of an app through `sock-minit`, and of the sidecar.

Each message is a JSON object in its own packet (`minit/linux/messages.py`). A client begins with an `attach`, which
carries a descriptor for each of its streams, in their order: the sidecar's end of a pair of stream sockets. The sockets
hold nothing but the app's bytes. The session has all messages; its end detaches the client.

From the client:

    {"op": "attach", "streams": [...], ...}   see Attach
    {"op": "resize", "size": [rows, columns]} the size of the app's terminal; the last client to say one wins
    {"op": "take-stdin"}                      become the one whose input the app gets
    {"op": "reading"}                         output is being read, though so slowly that the sidecar does not see it
    {"op": "status"}                          also without an attach

The answer to each is {"ok": true, ...} or {"ok": false, "error": ...}, also to a message without a valid request; a
failed `attach` or an unreadable message ends the session. The answer to `attach` has `stdin`, a state of STDIN_STATES,
and `positions`: the client's first position in each output. A position plus all received bytes, plus for each `dropped`
the missing bytes less the marker's, is the number of bytes that the app had written before the next byte.

From the sidecar, at any time:

    {"event": "stdin-taken"}                  another client's input goes to the app now
    {"event": "stdin-given"}                  this client's does, as the one before it has left
    {"event": "stdin-ended"}                  the app reads no more input, or has been told that there is none
    {"event": "dropped", "stream": S, "bytes": N, "marker_bytes": M}
                                              N bytes were left out and a marker of M bytes stands in their place, or
                                              nothing (M is 0) in an output that is `unmarked`
    {"event": "too-slow"}                     the policy is `disconnect`, and this is the end of the session
    {"event": "ended"}                        the app's output has ended, and all of it has been sent

The end of a session without `ended` or `too-slow` means that the sidecar was killed; another sidecar takes over within
a second or two, and meanwhile connections wait. A client that half-closes its `stdin` ends the app's input; a client
that closes it altogether only detaches it.
"""

from __future__ import annotations

from collections.abc import Mapping

from minit.base.errors import MinitError
from minit.base.value import Value

STDIN = "stdin"
STDOUT = "stdout"
STDERR = "stderr"
TTY_IN = "tty-in"
TTY_OUT = "tty-out"
INPUTS = (STDIN, TTY_IN)
STREAMS = (STDIN, STDOUT, STDERR, TTY_IN, TTY_OUT)

OP_ATTACH = "attach"
OP_RESIZE = "resize"
OP_TAKE_STDIN = "take-stdin"
OP_READING = "reading"
OP_STATUS = "status"

EVENT_STDIN_TAKEN = "stdin-taken"
EVENT_STDIN_GIVEN = "stdin-given"
EVENT_STDIN_ENDED = "stdin-ended"
EVENT_DROPPED = "dropped"
EVENT_TOO_SLOW = "too-slow"
EVENT_ENDED = "ended"

# The policies for output that a client does not read in time. `wait` is `block` while the client reads, and else
# `drop`.
POLICY_WAIT = "wait"
POLICY_DROP = "drop"
POLICY_DISCONNECT = "disconnect"
POLICY_BLOCK = "block"
POLICIES = (POLICY_WAIT, POLICY_DROP, POLICY_DISCONNECT, POLICY_BLOCK)

# The owner of the app's input: this client, another client, or nobody, as the app has no input or the client asked for
# none.
STDIN_OWNER = "owner"
STDIN_OTHER = "other"
STDIN_NONE = "none"
STDIN_STATES = (STDIN_OWNER, STDIN_OTHER, STDIN_NONE)

DEFAULT_QUEUE_BYTES = 256 * 1024
MINIMUM_QUEUE_BYTES = 4 * 1024
MAXIMUM_QUEUE_BYTES = 16 << 20
# struct winsize has 16 bits for each.
_MAXIMUM_SIZE = 0xFFFF


class ProtocolError(MinitError):
    """A message against the session protocol; the text has the expectation."""


class Attach(Value):
    """
    The request of a client: `streams` of STREAMS, each at most once.

    `queue_bytes` is how much output of a stream may wait for the client before `policy` applies. With `replay` the
    client first gets the last output from before too. `resume` has the positions of streams already received in part:
    earlier output is left out, whatever `replay` says. With `take_stdin` the client becomes the owner of the app's
    input, even in place of another owner. `size` is the size of the client's terminal in rows and columns, None to
    leave the app's size alone. `unmarked` are outputs without a line for missing output.
    """

    streams: tuple[str, ...]
    policy: str = POLICY_WAIT
    queue_bytes: int = DEFAULT_QUEUE_BYTES
    replay: bool = True
    take_stdin: bool = False
    size: tuple[int, int] | None = None
    resume: tuple[tuple[str, int], ...] = ()
    unmarked: tuple[str, ...] = ()

    @property
    def input(self) -> str | None:
        """The input among the streams, None without an input."""
        return next((name for name in self.streams if name in INPUTS), None)

    def request(self) -> dict[str, object]:
        """Return the message of the request."""
        return {
            "op": OP_ATTACH,
            "streams": list(self.streams),
            "policy": self.policy,
            "queue_bytes": self.queue_bytes,
            "replay": self.replay,
            "take_stdin": self.take_stdin,
            "size": None if self.size is None else list(self.size),
            "resume": dict(self.resume),
            "unmarked": list(self.unmarked),
        }


class Resize(Value):
    """The app's terminal shall have another size, in rows and columns."""

    size: tuple[int, int]

    def request(self) -> dict[str, object]:
        """Return the message of the request."""
        return {"op": OP_RESIZE, "size": list(self.size)}


class TakeStdin(Value):
    """The app's input shall be this client's."""

    def request(self) -> dict[str, object]:
        """Return the message of the request."""
        return {"op": OP_TAKE_STDIN}


class Reading(Value):
    """The client's outputs are being read."""

    def request(self) -> dict[str, object]:
        """Return the message of the request."""
        return {"op": OP_READING}


class AskStatus(Value):
    """The sidecar's counters shall be told."""

    def request(self) -> dict[str, object]:
        """Return the message of the request."""
        return {"op": OP_STATUS}


Request = Attach | Resize | TakeStdin | Reading | AskStatus
_OPS = (OP_ATTACH, OP_RESIZE, OP_TAKE_STDIN, OP_READING, OP_STATUS)


def parse_request(message: Mapping[str, object]) -> Request:
    """Return the request in a client's message; ProtocolError for an invalid message. Unknown fields are ignored."""
    op = message.get("op")
    if op == OP_ATTACH:
        return _parse_attach(message)
    if op == OP_RESIZE:
        size = _parse_size(message.get("size"))
        if size is None:
            raise ProtocolError("size: expected rows and columns, got null")
        return Resize(size=size)
    if op == OP_TAKE_STDIN:
        return TakeStdin()
    if op == OP_READING:
        return Reading()
    if op == OP_STATUS:
        return AskStatus()
    raise ProtocolError(f"op: expected one of {', '.join(_OPS)}, got {op!r:.60}")


def _parse_attach(message: Mapping[str, object]) -> Attach:
    streams = message.get("streams")
    if not isinstance(streams, list) or not streams or any(name not in STREAMS for name in streams):
        raise ProtocolError(f"streams: expected some of {', '.join(STREAMS)}, got {streams!r:.60}")
    if len(set(streams)) != len(streams) or {STDIN, TTY_IN} <= set(streams):
        raise ProtocolError(f"streams: expected each once and at most one input, got {streams!r:.60}")
    policy = message.get("policy", POLICY_WAIT)
    if policy not in POLICIES:
        raise ProtocolError(f"policy: expected one of {', '.join(POLICIES)}, got {policy!r:.60}")
    assert isinstance(policy, str)
    resume = message.get("resume", {})
    if not isinstance(resume, dict) or any(name not in streams or name in INPUTS for name in resume):
        raise ProtocolError(f"resume: expected positions of the outputs asked for, got {resume!r:.60}")
    unmarked = message.get("unmarked", [])
    if not isinstance(unmarked, list) or any(name not in streams for name in unmarked):
        raise ProtocolError(f"unmarked: expected some of the streams asked for, got {unmarked!r:.60}")
    return Attach(
        streams=tuple(streams),
        policy=policy,
        queue_bytes=_parse_number(
            message, "queue_bytes", DEFAULT_QUEUE_BYTES, MINIMUM_QUEUE_BYTES, MAXIMUM_QUEUE_BYTES
        ),
        replay=_parse_flag(message, "replay", True),
        take_stdin=_parse_flag(message, "take_stdin", False),
        size=_parse_size(message.get("size")),
        resume=tuple((name, _parse_number(resume, name, 0, 0, 1 << 63)) for name in resume),
        unmarked=tuple(unmarked),
    )


def _parse_size(value: object) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(_is_number(part, 0, _MAXIMUM_SIZE) for part in value):
        raise ProtocolError(f"size: expected rows and columns of at most {_MAXIMUM_SIZE}, got {value!r:.60}")
    return value[0], value[1]


def _parse_number(fields: Mapping[str, object], name: str, default: int, least: int, most: int) -> int:
    value = fields.get(name, default)
    if not _is_number(value, least, most):
        raise ProtocolError(f"{name}: expected a number from {least} to {most}, got {value!r:.60}")
    assert isinstance(value, int)
    return value


def _parse_flag(fields: Mapping[str, object], name: str, default: bool) -> bool:
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise ProtocolError(f"{name}: expected true or false, got {value!r:.60}")
    return value


def _is_number(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
