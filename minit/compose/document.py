"""
Compose files as one document: read, with variables replaced, in the long forms of all keys, and merged.

The rules are those of the Compose Specification, "Merge and override", "Include" and `extends`. Relative paths are
made absolute, since each file has a directory of its own.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml

from minit.base.errors import ManifestError, PodError, describe
from minit.base.value import Value
from minit.compose.interpolation import interpolate, parse_variables
from minit.manifest.reader import PlacedFields, PlacedList
from minit.stage0.files.yamltext import MAX_BYTES, Budget, plain_value, read_nodes, yaml_error

SECTIONS = ("services", "networks", "volumes", "secrets", "configs")
ENVIRONMENT_FILE = ".env"
SECRETS = "/run/secrets"
"""Where secrets are whose target is no absolute path."""

_RESET, _OVERRIDE = "!reset", "!override"
_STANDARD = "tag:yaml.org,2002:"
_MERGE = "<<"
_TRUE, _FALSE = ("true",), ("false",)

_TABLES = ("environment", "labels", "annotations", "sysctls", "args", "additional_contexts", "driver_opts")
_LISTS = ("dns", "dns_search", "dns_opt", "tmpfs", "env_file", "label_file")
_REPLACED = ("command", "entrypoint", "test")
_FILES = ("env_file", "label_file")
_REMOTE = re.compile(r"[a-z][a-z0-9+.-]*://|git@|github\.com/")
_ADDRESS = re.compile(
    r"(?:(?P<ip>\[[0-9A-Fa-f:.]+\]|[0-9]+(?:\.[0-9]+){3}):)?(?:(?P<host>[0-9-]*):)?(?P<inner>[0-9-]+)"
)
_ACCESS = {"ro": ("read_only", True), "rw": ("read_only", False), "nocopy": ("volume", "nocopy")}
_PROPAGATIONS = ("private", "rprivate", "shared", "rshared", "slave", "rslave")
_NO_MEANING = ("z", "Z", "cached", "delegated", "consistent")


class _Tagged(Value):
    """A value with the tag !reset or !override."""

    tag: str
    value: object


class Sources:
    """
    Reads files with variables of an environment.

    `note` is told about unset variables. Files count by their paths as the user or another file has given them.
    """

    def __init__(self, environment: Mapping[str, str], note: Callable[[str], None]) -> None:
        self.environment = environment
        self._note = note
        self._missing: set[str] = set()

    def read(self, files: Sequence[str], directory: Path, within: tuple[str, ...] = ()) -> PlacedFields:
        """Return the merged document of files, each over the earlier; ManifestError with the line of the fault."""
        merged = PlacedFields()
        for file in files:
            for document in self._documents(file, directory):
                merged = _as_fields(_merge(merged, self._complete(document, file, directory, within), ()))
        return _without_tags(merged)

    def _documents(self, file: str, directory: Path) -> list[PlacedFields]:
        found = []
        for value in read_nodes(read_file(file), file, self._make(file)):
            if value is None:
                continue
            if not isinstance(value, PlacedFields):
                raise ManifestError(f"{file}: expected a mapping with services")
            found.append(_long_forms(value, directory))
        return found

    def _complete(self, document: PlacedFields, file: str, directory: Path, within: tuple[str, ...]) -> PlacedFields:
        """Return a document with what its services extend, and what it includes."""
        services = document.get("services")
        if isinstance(services, PlacedFields):
            extended = _empty_like(services)
            for name in services:
                extended[name] = self._extend(document, name, file, directory, ())
            document = _with(document, "services", extended)
        includes = document.pop("include", None)
        if isinstance(includes, PlacedList):
            for number, each in enumerate(includes):
                self._include(document, each, includes.places[number], directory, (*within, os.path.abspath(file)))
        elif includes is not None:
            raise ManifestError(f"{document.places['include']}: include: expected a list")
        return document

    def _extend(
        self, document: PlacedFields, name: str, file: str, directory: Path, chain: tuple[tuple[str, str], ...]
    ) -> object:
        services = document["services"]
        assert isinstance(services, PlacedFields)
        service = services[name]
        if not isinstance(service, PlacedFields) or "extends" not in service:
            return service
        place = service.places["extends"]
        wanted = service["extends"]
        fields = wanted if isinstance(wanted, PlacedFields) else {"service": wanted}
        base_name, base_file = fields.get("service"), fields.get("file")
        unknown = [key for key in fields if key not in ("service", "file")]
        if not isinstance(base_name, str) or not isinstance(base_file, (str, type(None))) or unknown:
            raise ManifestError(f"{place}: services.{name}.extends: expected a service, and perhaps a file")
        base_directory, base_document = directory, document
        if base_file is not None:
            base_file = os.path.join(directory, base_file)
            base_directory = Path(base_file).parent
            base_document = PlacedFields()
            for each in self._documents(base_file, base_directory):
                base_document = _as_fields(_merge(base_document, each, ()))
        base_file = base_file or file
        key = (os.path.abspath(base_file), base_name)
        if key in chain or key == (os.path.abspath(file), name):
            raise ManifestError(f"{place}: services.{name}.extends: the service extends itself")
        base_services = base_document.get("services")
        if not isinstance(base_services, PlacedFields) or base_name not in base_services:
            raise ManifestError(f"{place}: services.{name}.extends: {base_file} has no service {base_name}")
        base = self._extend(base_document, base_name, base_file, base_directory, (*chain, key))
        own = _empty_like(service)
        own.update({field: value for field, value in service.items() if field != "extends"})
        return _merge(_without_tags(base), own, ("services", "*"))

    def _include(
        self, document: PlacedFields, wanted: object, place: str, directory: Path, within: tuple[str, ...]
    ) -> None:
        """Add the resources of included files to a document, which must not have other ones of the same names."""
        fields = wanted if isinstance(wanted, PlacedFields) else {"path": wanted}
        unknown = [key for key in fields if key not in ("path", "project_directory", "env_file")]
        paths = _texts(fields.get("path"))
        if not paths or unknown:
            raise ManifestError(f"{place}: include: expected a path, and perhaps project_directory and env_file")
        files = [os.path.join(directory, path) for path in paths]
        if any(os.path.abspath(file) in within for file in files):
            raise ManifestError(f"{place}: include: the file includes itself")
        home = fields.get("project_directory")
        top = Path(os.path.join(directory, home) if isinstance(home, str) else os.path.dirname(files[0]))
        given = [os.path.join(directory, file) for file in _texts(fields.get("env_file"))]
        environment = with_files(self.environment, given or default_files(top))
        inner = Sources(environment, self._note).read(files, top, within)
        for section in SECTIONS:
            found = inner.get(section)
            if not isinstance(found, PlacedFields):
                continue
            own = document.get(section)
            if not isinstance(own, PlacedFields):
                own = PlacedFields()
                document.put(section, own, place)
            for name, value in found.items():
                if name in own and own[name] != value:
                    raise ManifestError(f"{place}: include: {section}.{name} is also at {own.places[name]}")
                own.put(name, value, found.places[name])

    def _make(self, file: str) -> Callable[[yaml.Node, Budget], object]:
        def look(name: str) -> str | None:
            return self.environment.get(name)

        def missing(name: str) -> None:
            if name not in self._missing:
                self._missing.add(name)
                self._note(f"warning: the variable {name} is not set: it is empty")

        def text(node: yaml.ScalarNode) -> str:
            try:
                return interpolate(node.value, look, missing)
            except ManifestError as error:
                raise yaml_error(file, node.start_mark, str(error)) from error

        def make(node: yaml.Node, budget: Budget, within: tuple[int, ...] = ()) -> object:
            budget.take(node)
            if node.tag in (_RESET, _OVERRIDE):
                tag, node.tag = node.tag, f"{_STANDARD}{node.id}"
                return _Tagged(tag=tag, value=make(node, budget, within))
            if not node.tag.startswith(_STANDARD):
                raise yaml_error(file, node.start_mark, f"the tag {node.tag} means nothing here")
            if id(node) in within:
                raise yaml_error(file, node.start_mark, "an anchor is used within itself")
            if isinstance(node, yaml.ScalarNode):
                value = text(node) if "$" in node.value else node.value
                is_text = node.style is not None or value != node.value or node.tag == f"{_STANDARD}str"
                return value if is_text else plain_value(value, _TRUE, _FALSE)
            within = (*within, id(node))
            if isinstance(node, yaml.SequenceNode):
                elements = PlacedList()
                for item in node.value:
                    elements.put(make(item, budget, within), _place(file, item))
                return elements
            return mapping(node, budget, within)

        def mapping(node: yaml.MappingNode, budget: Budget, within: tuple[int, ...]) -> PlacedFields:
            fields, merged = PlacedFields(), PlacedFields()
            for key, item in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise yaml_error(file, key.start_mark, "expected a plain name as a key")
                if key.value == _MERGE and key.style is None:
                    for source in item.value if isinstance(item, yaml.SequenceNode) else [item]:
                        found = make(source, budget, within)
                        if not isinstance(found, PlacedFields):
                            raise yaml_error(file, source.start_mark, "expected a mapping to merge")
                        for name in found:
                            if name not in merged:
                                merged.put(name, found[name], found.places[name])
                elif key.value in fields:
                    raise yaml_error(file, key.start_mark, f'"{key.value}" is given twice')
                else:
                    fields.put(key.value, make(item, budget, within), _place(file, key))
            for name in merged:
                if name not in fields:
                    fields.put(name, merged[name], merged.places[name])
            return fields

        return make


def find_name(files: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return the project's name in the last file that has one."""
    found = None
    for file in files:
        for name in read_nodes(read_file(file), file, lambda node, _: _name_in(node)):
            found = name or found
    return None if found is None else interpolate(found, environment.get, lambda name: None)


def _name_in(node: yaml.Node) -> str | None:
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if isinstance(key, yaml.ScalarNode) and key.value == "name" and isinstance(value, yaml.ScalarNode):
            return str(value.value)
    return None


def read_file(file: str) -> bytes:
    """Return the bytes of a file, `-` for standard input; PodError if the file cannot be read."""
    try:
        with open(0 if file == "-" else file, "rb", closefd=file != "-") as opened:
            return opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise PodError(f"cannot read {describe(error)}") from error


def default_files(directory: Path) -> list[str]:
    """Return the file of variables that a directory has by itself, if any."""
    path = directory / ENVIRONMENT_FILE
    return [str(path)] if path.is_file() else []


def with_files(environment: Mapping[str, str], files: Sequence[str]) -> dict[str, str]:
    """Return an environment with the variables of files that it has not."""
    found: dict[str, str] = {}
    for file in files:
        parsed = parse_variables(_text_of(read_file(file), file), file, {**found, **environment})
        found.update({name: value for name, value in parsed.items() if value is not None})
    return {**found, **environment}


def read_variables(file: str, environment: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables of one file, as parse_variables."""
    return parse_variables(_text_of(read_file(file), file), file, environment)


def _text_of(data: bytes, file: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ManifestError(f"{file}: expected UTF-8, got 0x{error.object[error.start]:02x}") from error


def _place(file: str, node: yaml.Node) -> str:
    return f"{file}:{node.start_mark.line + 1}"


def _texts(value: object) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, str)]


def _as_fields(value: object) -> PlacedFields:
    assert isinstance(value, PlacedFields)
    return value


def _empty_like(fields: PlacedFields) -> PlacedFields:
    empty = PlacedFields()
    empty.places.update(fields.places)
    return empty


def _with(fields: PlacedFields, name: str, value: object) -> PlacedFields:
    changed = _empty_like(fields)
    changed.update(fields)
    changed[name] = value
    return changed


def _merge(base: object, other: object, path: tuple[str, ...]) -> object:
    """Return `base` with `other` over it; `path` has the keys down to both, `*` for the name of a service."""
    if isinstance(other, _Tagged):
        return other if other.tag == _RESET else other.value
    if isinstance(base, PlacedFields) and isinstance(other, PlacedFields):
        if path[-1:] == ("logging",) and other.get("driver", base.get("driver")) != base.get("driver"):
            return other
        return _merge_fields(base, other, path)
    if isinstance(base, PlacedList) and isinstance(other, PlacedList):
        return other if path[-1:] and path[-1] in _REPLACED else _merge_lists(base, other, path)
    if other is None and isinstance(base, (PlacedFields, PlacedList)):
        return base
    return other


def _merge_fields(base: PlacedFields, other: PlacedFields, path: tuple[str, ...]) -> PlacedFields:
    merged = _empty_like(base)
    merged.update(base)
    for name, value in other.items():
        step = "*" if path == ("services",) else name
        if isinstance(value, _Tagged) and value.tag == _RESET:
            merged.pop(name, None)
        elif name in merged:
            merged.put(name, _merge(merged[name], value, (*path, step)), other.places[name])
        else:
            merged.put(name, value, other.places[name])
    return merged


def _merge_lists(base: PlacedList, other: PlacedList, path: tuple[str, ...]) -> PlacedList:
    merged = PlacedList()
    for elements in (base, other):
        for value, place in zip(elements, elements.places, strict=True):
            key = _unique_key(value, path)
            same = [number for number, each in enumerate(merged) if _unique_key(each, path) == key]
            if not same:
                merged.put(value, place)
            elif elements is other:
                merged[same[0]] = _merge_entries(merged[same[0]], value, path)
                merged.places[same[0]] = place
    return merged


def _merge_entries(base: object, other: object, path: tuple[str, ...]) -> object:
    if isinstance(base, PlacedFields) and isinstance(other, PlacedFields) and base.get("type") == other.get("type"):
        return _merge_fields(base, other, path)
    return other


def _unique_key(value: object, path: tuple[str, ...]) -> object:
    """Return what no two elements of a list have in common."""
    if path[:2] == ("services", "*") and len(path) == 3 and isinstance(value, PlacedFields):
        if path[2] == "ports":
            return tuple(str(value.get(name, "")) for name in ("host_ip", "target", "published", "protocol"))
        if path[2] in ("volumes", "devices"):
            return value.get("target")
        if path[2] in ("secrets", "configs"):
            directory = SECRETS if path[2] == "secrets" else "/"
            return posixpath.join(directory, str(value.get("target", value.get("source"))))
        if path[2] in _FILES:
            return value.get("path")
    return value


def _without_tags(value: object) -> PlacedFields:
    """Return a value without the keys that !reset takes away, and the values of !override."""
    return _as_fields(_plain(value))


def _plain(value: object) -> object:
    if isinstance(value, _Tagged):
        return None if value.tag == _RESET else _plain(value.value)
    if isinstance(value, PlacedFields):
        fields = _empty_like(value)
        for name, item in value.items():
            if not (isinstance(item, _Tagged) and item.tag == _RESET):
                fields[name] = _plain(item)
        return fields
    if isinstance(value, PlacedList):
        elements = PlacedList()
        for item, place in zip(value, value.places, strict=True):
            elements.put(_plain(item), place)
        return elements
    return value


def _long_forms(document: PlacedFields, directory: Path) -> PlacedFields:
    """Return a document whose resources have the long forms of keys; what has no form stays for its reader."""
    changed = _empty_like(document)
    for section, value in document.items():
        changed[section] = value
        if section in SECTIONS and isinstance(value, PlacedFields):
            forms = _empty_like(value)
            for name, each in value.items():
                forms[name] = each
                if isinstance(each, PlacedFields):
                    forms[name] = _service_forms(each, directory) if section == "services" else _forms(each, directory)
            changed[section] = forms
    return changed


def _service_forms(service: PlacedFields, directory: Path) -> PlacedFields:
    changed = _empty_like(service)
    for name, value in service.items():
        changed[name] = _tag_kept(value, _form_of(name, service.places[name], directory))
    return changed


def _forms(fields: PlacedFields, directory: Path) -> PlacedFields:
    """Return a part of a service, or a resource, in its long form; a `file` is below the directory."""
    changed = _empty_like(fields)
    for name, value in fields.items():
        place = fields.places[name]
        changed[name] = value
        if name in _TABLES:
            changed[name] = _tag_kept(value, lambda each, place=place: _table(each, place))  # type: ignore[misc]
        elif name == "file" and isinstance(value, str):
            changed[name] = absolute(value, directory)
    return changed


def _tag_kept(value: object, form: Callable[[object], object]) -> object:
    if isinstance(value, _Tagged):
        return _Tagged(tag=value.tag, value=form(value.value))
    return form(value)


def _form_of(name: str, place: str, directory: Path) -> Callable[[object], object]:
    """Return the function from a value of a service to its long form."""

    def form(value: object) -> object:
        if name in _TABLES:
            return _table(value, place)
        if name in _LISTS and isinstance(value, str):
            value = _list_of([value], place)
        if name in _FILES and isinstance(value, PlacedList):
            return _each(value, lambda each, where: _file_form(each, where, directory))
        if name == "depends_on" and isinstance(value, PlacedList):
            return _keyed(value, {"condition": "service_started", "required": True})
        if name == "networks" and isinstance(value, PlacedList):
            return _keyed(value, None)
        if name == "ports" and isinstance(value, PlacedList):
            return _flat(value, _port_forms)
        if name == "volumes" and isinstance(value, PlacedList):
            return _each(value, lambda each, where: _volume_form(each, where, directory))
        if name in ("secrets", "configs") and isinstance(value, PlacedList):
            return _each(value, lambda each, where: _fields({"source": each}, where) if isinstance(each, str) else each)
        if name == "devices" and isinstance(value, PlacedList):
            return _each(value, _device_form)
        if name == "extra_hosts":
            return _hosts_form(value, place)
        if name == "build":
            return _build_form(value, place, directory)
        if name == "healthcheck" and isinstance(value, PlacedFields) and isinstance(value.get("test"), str):
            return _with(value, "test", _list_of(["CMD-SHELL", value["test"]], value.places["test"]))
        if name in ("deploy", "logging") and isinstance(value, PlacedFields):
            return _forms(value, directory)
        if name == "extends" and isinstance(value, str):
            return _fields({"service": value}, place)
        return value

    return form


def _fields(values: Mapping[str, object], place: str) -> PlacedFields:
    fields = PlacedFields()
    for name, value in values.items():
        fields.put(name, value, place)
    return fields


def _list_of(values: Sequence[object], place: str) -> PlacedList:
    elements = PlacedList()
    for value in values:
        elements.put(value, place)
    return elements


def _each(value: PlacedList, form: Callable[[object, str], object]) -> PlacedList:
    return _flat(value, lambda each, where: [form(each, where)])


def _flat(value: PlacedList, forms: Callable[[object, str], Sequence[object]]) -> PlacedList:
    elements = PlacedList()
    for each, place in zip(value, value.places, strict=True):
        for form in forms(each, place):
            elements.put(form, place)
    return elements


def _table(value: object, place: str) -> object:
    """Return a mapping in the place of a list of NAME=VALUE."""
    if not isinstance(value, PlacedList):
        return value
    fields = PlacedFields()
    for each, where in zip(value, value.places, strict=True):
        if not isinstance(each, str):
            raise ManifestError(f"{where}: expected NAME=VALUE as a string")
        name, separator, text = each.partition("=")
        fields.put(name, text if separator else None, where)
    return fields


def _keyed(value: PlacedList, entry: Mapping[str, object] | None) -> PlacedFields:
    fields = PlacedFields()
    for each, place in zip(value, value.places, strict=True):
        if not isinstance(each, str):
            raise ManifestError(f"{place}: expected a name")
        fields.put(each, None if entry is None else _fields(entry, place), place)
    return fields


def absolute(path: str, directory: Path) -> str:
    """Return a path of a file that lies in a directory; `~` is the caller's home."""
    return os.path.normpath(os.path.join(directory, os.path.expanduser(path)))


def _file_form(value: object, place: str, directory: Path) -> object:
    fields = _fields({"path": value}, place) if isinstance(value, str) else value
    if isinstance(fields, PlacedFields) and isinstance(fields.get("path"), str):
        return _with(fields, "path", absolute(str(fields["path"]), directory))
    return fields


def _hosts_form(value: object, place: str) -> object:
    if not isinstance(value, PlacedFields):
        return value
    found = PlacedList()
    for name, addresses in value.items():
        for address in addresses if isinstance(addresses, PlacedList) else [addresses]:
            found.put(f"{name}={address}", value.places[name])
    return found


def _build_form(value: object, place: str, directory: Path) -> object:
    fields = _fields({"context": value}, place) if isinstance(value, str) else value
    if not isinstance(fields, PlacedFields):
        return fields
    context = fields.get("context")
    if isinstance(context, str) and not _REMOTE.match(context):
        fields = _with(fields, "context", absolute(context, directory))
    return _forms(fields, directory)


def _device_form(value: object, place: str) -> object:
    if not isinstance(value, str):
        return value
    source, _, rest = value.partition(":")
    target, _, permissions = rest.partition(":")
    return _fields({"source": source, "target": target or source, "permissions": permissions or "rwm"}, place)


def _port_forms(value: object, place: str) -> list[object]:
    """Return the long forms of a port, or of each port of a range."""
    if isinstance(value, PlacedFields):
        return [_with(value, "protocol", value.get("protocol", "tcp"))]
    text = str(value)
    numbers, _, protocol = text.partition("/")
    match = _ADDRESS.fullmatch(numbers)
    fault = ManifestError(f'{place}: expected a port such as "80", "8080:80" or "127.0.0.1:8080:80/udp", got "{text}"')
    if not isinstance(value, (str, int)) or match is None:
        raise fault
    inner, outer = _range(match["inner"], fault), match["host"] or ""
    hosts = _range(outer, fault) if outer else ()
    if hosts and len(inner) > 1 and len(hosts) != len(inner):
        raise ManifestError(f'{place}: expected ranges of the same length, got "{text}"')
    forms: list[object] = []
    for number, target in enumerate(inner):
        published = outer if len(inner) == 1 else str(hosts[number]) if hosts else ""
        fields: dict[str, object] = {"target": target, "protocol": protocol or "tcp"}
        fields |= {"published": published} if published else {}
        fields |= {"host_ip": match["ip"].strip("[]")} if match["ip"] else {}
        forms.append(_fields(fields, place))
    return forms


def _range(text: str, fault: ManifestError) -> range:
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise fault
    ports = range(int(first), int(last or first) + 1)
    if not ports or not 0 < ports[0] <= ports[-1] <= 65535:
        raise fault
    return ports


def _volume_form(value: object, place: str, directory: Path) -> object:
    if isinstance(value, PlacedFields):
        source = value.get("source")
        if value.get("type") == "bind" and isinstance(source, str):
            return _with(value, "source", absolute(source, directory))
        return value
    if not isinstance(value, str):
        return value
    first, *rest = value.split(":")
    if not rest:
        return _fields({"type": "volume", "target": first}, place)
    target, *options = rest
    fields: dict[str, object] = {"type": "volume", "source": first, "target": target}
    if first.startswith((".", "/", "~")):
        bind = _fields({"create_host_path": True}, place)
        fields |= {"type": "bind", "source": absolute(first, directory), "bind": bind}
    for option in (word for each in options for word in each.split(",")):
        if option in _PROPAGATIONS:
            fields["bind"] = _fields({"create_host_path": True, "propagation": option}, place)
        elif option in _ACCESS:
            name, setting = _ACCESS[option]
            fields[name] = _fields({"nocopy": True}, place) if setting == "nocopy" else setting
        elif option not in _NO_MEANING:
            raise ManifestError(f'{place}: the option "{option}" of the volume "{value}" means nothing')
    return _fields(fields, place)
