"""minit.plan.root.mountdetails: whose volumes show their owners in a pod with a user namespace."""

from __future__ import annotations

import pytest

from minit.base.errors import PlanError
from minit.manifest.pod import PodManifest, RuntimeApp
from minit.plan.root.mountdetails import plan_idmap
from minit.plan.root.volumes import EMPTY, HOST, VolumeMount

KINDS = {"data": HOST, "logs": HOST, "cache": EMPTY}


def mapped(
    *annotations: str | None, of_pod: str | None = None, volumes: str = "data logs cache", private_users: bool = True
) -> list[str]:
    """Return the volumes of each app that are mapped; `annotations` are those of the apps, None for none."""
    apps = tuple(
        RuntimeApp(name=f"app{number}", annotations=() if text is None else (("minit/idmap", text),))
        for number, text in enumerate(annotations)
    )
    manifest = PodManifest(
        ac_version="0.8.11", apps=apps, annotations=() if of_pod is None else (("minit/idmap", of_pod),)
    )
    planned = tuple(
        VolumeMount(volume=name, kind=KINDS[name], source=f"/{name}", target=f"/{name}", place="here")
        for name in volumes.split()
    )
    found = plan_idmap(manifest, [planned] * len(apps), private_users=private_users)
    return [" ".join(volume.volume for volume in of_app if volume.idmap) for of_app in found]


def test_an_app_decides_before_the_pod() -> None:
    """Volumes of the host are mapped, all or those that are named; the pod's annotation is for apps without one."""
    assert mapped("true", "false", "logs", "logs,data", None) == ["data logs", "", "logs", "data logs", ""]
    assert mapped("true", "false", "logs", None, of_pod="data") == ["data logs", "", "logs", "data"]
    assert mapped(None, "false", of_pod="true") == ["data logs", ""]


@pytest.mark.parametrize("text", ["", "cache", "data,cache", "data,", "nothing", "True", "1", "data logs"])
def test_names_of_no_volume_of_the_host(text: str) -> None:
    """They are refused, with the place of the annotation."""
    name = next(name for name in text.split(",") if name not in ("data", "logs"))
    complaint = f'annotation minit/idmap: expected "true", "false" or names of volumes of the host, got "{name}"'
    with pytest.raises(PlanError) as caught:
        mapped(text)
    assert str(caught.value) == f'app "app0": {complaint}'
    with pytest.raises(PlanError) as caught:
        mapped("false", of_pod=text)
    assert str(caught.value) == complaint


def test_nothing_to_map() -> None:
    """A request for all volumes of the host needs one."""
    with pytest.raises(PlanError, match='^app "app0": annotation minit/idmap: there is no volume of the host$'):
        mapped("true", volumes="cache")


def test_without_private_users() -> None:
    """The annotation is refused in a pod without a user namespace, unless it says no."""
    for text in ("true", "data"):
        for arguments, of_pod in (((text,), None), ((None,), text)):
            with pytest.raises(PlanError, match="minit/idmap: ids are mapped in pods with --private-users only$"):
                mapped(*arguments, of_pod=of_pod, private_users=False)
    assert mapped("false", of_pod="false", private_users=False) == [""]
