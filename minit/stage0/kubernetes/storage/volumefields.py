"""Files that volumes of a Kubernetes pod consist of: keys of ConfigMaps and Secrets, and fields of the Pod itself."""

from __future__ import annotations

import posixpath

from minit.base.value import Value
from minit.manifest.reader import Node
from minit.stage0.kubernetes.reading.fields import INNER_FORM, Fields, Findings, is_inner
from minit.stage0.kubernetes.references.configmaps import CONFIG_MAP, SECRET, Config, find_config
from minit.stage0.kubernetes.references.fieldrefs import read_field, read_resource_field
from minit.stage0.kubernetes.references.podfields import PodNames

_MODE_MAX = 0o777
_USUAL_MODE = 0o644


class VolumeFile(Value):
    """A file of a volume: its path below it, what it holds, None for the pod's UUID, and its mode."""

    path: str
    data: bytes | None
    mode: int


class Sources(Value):
    """The origins of a volume's files: the configs of the file, and the Pod. `group` is to read them, if not None."""

    configs: tuple[Config, ...]
    pod: PodNames
    group: int | None = None


def read_config_files(
    fields: Fields, sources: Sources, kind: str, *, key: str = "name", usual: int
) -> tuple[VolumeFile, ...]:
    """Return the files of a ConfigMap or Secret, whose name is in the field `key`."""
    with fields:
        optional = fields["optional"].optional(Node.boolean) or False
        config = find_config(sources.configs, kind, fields[key], optional)
        if fields["items"].given:
            found = fields.each("items", lambda node, findings: _read_item(node, findings, config, usual, optional))
            return tuple(file for file in found if file is not None)
        data = () if config is None else config.data
        return tuple(VolumeFile(path=path, data=content, mode=usual) for path, content in data)


def read_pod_files(fields: Fields, sources: Sources, usual: int) -> tuple[VolumeFile, ...]:
    """Return the files of fields of the Pod."""
    with fields:
        found = fields.each("items", lambda node, findings: _read_pod_file(node, findings, sources, usual))
        return tuple(file for file in found if file is not None)


def read_projected(fields: Fields, sources: Sources) -> tuple[VolumeFile, ...]:
    """Return the files of several sources; of two with one path the later."""
    with fields:
        mode = read_default_mode(fields)
        found = fields.each("sources", lambda node, findings: _read_source(node, findings, sources, mode))
        return tuple({file.path: file for files in found for file in files}.values())


def read_default_mode(fields: Fields) -> int:
    """Return the mode of files that have none of their own."""
    mode = fields["defaultMode"].optional(_read_mode)
    return _USUAL_MODE if mode is None else mode


def _read_source(node: Node, findings: Findings, sources: Sources, mode: int) -> tuple[VolumeFile, ...]:
    with Fields(node, findings) as fields:
        for field, kind in (("configMap", CONFIG_MAP), ("secret", SECRET)):
            if fields[field].given:
                return read_config_files(fields.within(field), sources, kind, usual=mode)
        if fields["downwardAPI"].given:
            return read_pod_files(fields.within("downwardAPI"), sources, mode)
        for field in ("serviceAccountToken", "clusterTrustBundle", "podCertificate"):
            if fields[field].given:
                findings.refuse(fields[field], "there is no cluster that would issue it")
                return ()
    raise node.error("one of configMap, secret and downwardAPI")


def _read_item(node: Node, findings: Findings, config: Config | None, mode: int, optional: bool) -> VolumeFile | None:
    with Fields(node, findings) as fields:
        path = fields["path"].matching(is_inner, INNER_FORM)
        own = fields["mode"].optional(_read_mode)
        key = fields["key"].non_empty()
        data = config.get(key) if config is not None else None
        if data is None:
            if optional or config is None:
                return None
            raise fields["key"].error(f"a key of {config.kind} {config.name}")
        return VolumeFile(path=posixpath.normpath(path), data=data, mode=mode if own is None else own)


def _read_pod_file(node: Node, findings: Findings, sources: Sources, mode: int) -> VolumeFile | None:
    with Fields(node, findings) as fields:
        path = posixpath.normpath(fields["path"].matching(is_inner, INNER_FORM))
        own = fields["mode"].optional(_read_mode)
        mode = mode if own is None else own
        if fields["resourceFieldRef"].given:
            text = read_resource_field(fields.within("resourceFieldRef"), sources.pod, None)
            return None if text is None else VolumeFile(path=path, data=text.encode(), mode=mode)
        field = fields.within("fieldRef")
        # What else there is to refer to is only for variables, in Kubernetes too.
        name = field["fieldPath"].matching(lambda text: text.startswith("metadata."), "a field of metadata")
        text = read_field(field, sources.pod)
        if text is None:
            return None
        return VolumeFile(path=path, data=None if name == "metadata.uid" else text.encode(), mode=mode)


def _read_mode(node: Node) -> int:
    return node.integer(0, _MODE_MAX)
