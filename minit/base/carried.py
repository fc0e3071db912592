"""
Objects of a process that go on in another program of the same process, execve(2).

The annotated fields of a `Carried` class are all of an object that goes on. A descriptor keeps the number, so a field
with a descriptor is annotated as one, and the codec tells which descriptors go on. docs/design.md has the format.
"""

from __future__ import annotations

import json
import os
import socket
import types
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Annotated, Any, ClassVar, TypeAlias, Union, get_args, get_origin, get_type_hints

from minit.base.errors import ManifestError
from minit.base.value import Value

VERSION = 1
"""Of the format: a program refuses every other version."""

_DESCRIPTOR = "descriptor"
# Not jsontext, which refuses infinity and text outside UTF-8: paths may have such text.
_ENCODER = json.JSONEncoder(separators=(",", ":"))

Descriptor: TypeAlias = Annotated[int, _DESCRIPTOR]
"""A descriptor that the object has open."""


class Carried:
    """
    A mutable object whose annotated fields are carried over; an object made of them has nothing else.

    An attribute of the class is the default of a field that an older version lacks.
    """

    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls._fields = (*cls._fields, *cls.__dict__.get("__annotations__", ()))

    def close_fields(self, *names: str) -> None:
        """
        Close descriptors and sockets, and have None in their fields.

        The fields come first: an error in between leaves no number in the state that soon is another file's.
        """
        for name in names:
            held = getattr(self, name)
            setattr(self, name, None)
            if isinstance(held, socket.socket):
                held.close()
            elif held is not None:
                os.close(held)

    def take_over(self, other: Carried) -> None:
        """Take the carried fields of another object of the class."""
        for name in self._fields:
            setattr(self, name, getattr(other, name))


# What turns the value of a field into JSON, and back.
_Encode = Callable[["_Encoder", Any], object]
_Decode = Callable[["_Decoder", Any], Any]
_Form = tuple[_Encode, _Decode]


class CarriedCodec:
    """
    Encodes and decodes an object of a class of `kinds`, with all objects that its fields lead to.

    An object that several fields lead to stays one object.
    """

    def __init__(self, *kinds: type[Carried]) -> None:
        # When a module is imported: PID 1 imports nothing later, and forgets the modules that annotations name.
        self.forms: dict[type[Carried | Value], dict[str, _Form]] = {}
        self.kinds: dict[str, type[Carried]] = {}
        for kind in kinds:
            self._learn(kind)

    def encode(self, root: Carried) -> tuple[bytes, list[int]]:
        """Return an object as bytes of JSON, and all its descriptors."""
        encoder = _Encoder(self)
        encoder.number_of(root)
        objects = encoder.objects()
        return _ENCODER.encode({"version": VERSION, "objects": objects}).encode(), encoder.descriptors

    def decode(self, data: bytes, place: str) -> Any:
        """
        Return the object in `data`; ManifestError, which names `place`, if this program cannot read the data.

        After any error the descriptors are still open.
        """
        try:
            content = json.loads(data)
            if content["version"] != VERSION:
                raise ManifestError(f"{place}: not of version {VERSION} of the format")
            return _Decoder(self, content["objects"]).objects[0]
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise ManifestError(f"{place}: not of this version: {error!r}") from error

    @staticmethod
    def fields(data: bytes) -> list[dict[str, Any]]:
        """Return the fields of each object in `data`, as JSON, for a program that cannot make the objects."""
        return [fields for _, fields in json.loads(data)["objects"]]

    def _learn(self, kind: type[Carried | Value]) -> None:
        if kind in self.forms:
            return
        fields = self.forms[kind] = {}
        hints = get_type_hints(kind, include_extras=True)
        for name in kind._fields:
            fields[name] = self._form(hints[name])
        if issubclass(kind, Carried):
            self.kinds[kind.__name__] = kind
            for other in kind.__subclasses__():
                self._learn(other)

    def _form(self, hint: Any) -> _Form:
        origin, inner = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return (_encode_descriptor, _decode_plain) if _DESCRIPTOR in inner else self._form(inner[0])
        if origin in (Union, types.UnionType):
            return self._optional([part for part in inner if part is not type(None)])
        if origin is dict:
            return _dict_form(self._form(inner[1]))
        if origin is tuple and inner[-1] is not Ellipsis:
            return _tuple_form([self._form(part) for part in inner])
        if origin in (list, tuple, set, frozenset):
            return _items_form(origin, self._form(inner[0]))
        if hint is socket.socket:
            return _encode_socket, _open_socket
        if isinstance(hint, type) and issubclass(hint, Carried):
            self._learn(hint)
            return _Encoder.number_of, lambda decoder, number: decoder.objects[number]
        if isinstance(hint, type) and issubclass(hint, Value):
            self._learn(hint)
            return _value_form(hint, self.forms[hint])
        if isinstance(hint, type) and issubclass(hint, Enum):
            return (lambda encoder, value: value.value), (lambda decoder, value: hint(value))
        return _PLAIN

    def _optional(self, hints: list[Any]) -> _Form:
        # Of several classes only plain ones are told apart.
        encode, decode = self._form(hints[0]) if len(hints) == 1 else _PLAIN
        return (
            lambda encoder, value: None if value is None else encode(encoder, value),
            lambda decoder, value: None if value is None else decode(decoder, value),
        )


class _Encoder:
    def __init__(self, codec: CarriedCodec) -> None:
        self.descriptors: list[int] = []
        self._codec = codec
        self._numbers: dict[int, int] = {}
        self._found: list[Carried] = []

    def number_of(self, value: Carried) -> int:
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._found)
            self._found.append(value)
        return number

    def objects(self) -> list[object]:
        done: list[object] = []
        # Fields lead to further objects.
        for value in self._found:
            forms = self._codec.forms[type(value)]
            fields = {name: encode(self, getattr(value, name)) for name, (encode, _) in forms.items()}
            done.append([type(value).__name__, fields])
        return done


class _Decoder:
    def __init__(self, codec: CarriedCodec, objects: list[Any]) -> None:
        # First all objects without fields, since fields lead to any of them.
        self.objects = [object.__new__(codec.kinds[name]) for name, _ in objects]
        self.sockets: list[socket.socket] = []
        try:
            self._fill(codec, objects)
        except BaseException:
            # A socket without an owner closes its descriptor.
            for sock in self.sockets:
                sock.detach()
            raise

    def _fill(self, codec: CarriedCodec, objects: list[Any]) -> None:
        for value, (_, fields) in zip(self.objects, objects):
            forms = codec.forms[type(value)]
            # A field with a default may be newer than the state.
            other = [name for name in forms.keys() ^ fields.keys() if name in fields or not hasattr(value, name)]
            if other:
                raise ValueError(f"{type(value).__name__} with other fields: {sorted(other)}")
            for name, field in fields.items():
                setattr(value, name, forms[name][1](self, field))


def _open_socket(decoder: _Decoder, fd: int) -> socket.socket:
    sock = socket.socket(fileno=fd)
    decoder.sockets.append(sock)
    # It blocks as before.
    sock.setblocking(os.get_blocking(fd))
    return sock


def _encode_descriptor(encoder: _Encoder, fd: int) -> int:
    encoder.descriptors.append(fd)
    return fd


def _encode_socket(encoder: _Encoder, sock: socket.socket) -> int:
    return _encode_descriptor(encoder, sock.fileno())


def _encode_plain(encoder: _Encoder, value: Any) -> object:
    """Return plain data of any form; bytes are told from text by a key."""
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, (list, tuple)):
        return [_encode_plain(encoder, item) for item in value]
    return value


def _decode_plain(decoder: _Decoder, value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["bytes"])
    if isinstance(value, list):
        return [_decode_plain(decoder, item) for item in value]
    return value


_PLAIN: _Form = (_encode_plain, _decode_plain)


def _value_form(kind: type[Value], forms: dict[str, _Form]) -> _Form:
    def encode(encoder: _Encoder, value: Value) -> object:
        return {name: each(encoder, getattr(value, name)) for name, (each, _) in forms.items()}

    def decode(decoder: _Decoder, fields: dict[str, Any]) -> Value:
        return kind(**{name: forms[name][1](decoder, field) for name, field in fields.items()})

    return encode, decode


def _dict_form(form: _Form) -> _Form:
    encode, decode = form
    return (
        lambda encoder, value: {key: encode(encoder, item) for key, item in value.items()},
        lambda decoder, value: {key: decode(decoder, item) for key, item in value.items()},
    )


def _tuple_form(forms: list[_Form]) -> _Form:
    return (
        lambda encoder, value: [encode(encoder, item) for (encode, _), item in zip(forms, value)],
        lambda decoder, value: tuple([decode(decoder, item) for (_, decode), item in zip(forms, value)]),
    )


def _items_form(kind: Callable[[Iterable[Any]], Any], form: _Form) -> _Form:
    encode, decode = form
    return (
        lambda encoder, value: [encode(encoder, item) for item in value],
        lambda decoder, value: kind([decode(decoder, item) for item in value]),
    )
