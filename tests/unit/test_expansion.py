"""Texts that stand for addresses, and settings of the kernel that a pod may have."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import MinitError
from minit.manifest.pod import PodManifest, RuntimeApp
from minit.plan.life.expansion import Addresses, expand, plan_expansion
from minit.plan.networks.kernelsettings import plan_sysctls

ADDRESSES = Addresses(uuid="u", pod=("10.1.0.2", "fd00::2"), host="10.1.0.1")


def planned(value: object) -> tuple[tuple[str, str], ...]:
    """Return the texts of an annotation."""
    return plan_expansion(RuntimeApp(name="web", annotations=(("minit/expand", json.dumps(value)),)))


def test_texts() -> None:
    """Each text is replaced wherever it is, the longest first, and what is put in is not looked at again."""
    texts = planned({"@": "pod-ip", "@@": "pod-ips", "u": "pod-uuid", "H": "host-ip"})
    assert expand("@:@@-H u", texts, ADDRESSES) == "10.1.0.2:10.1.0.2,fd00::2-10.1.0.1 u"
    assert expand("@ H", texts, Addresses(uuid="u")) == "127.0.0.1 127.0.0.1"
    assert plan_expansion(RuntimeApp(name="web")) == ()


@pytest.mark.parametrize("value", [[], {}, {"": "pod-ip"}, {"a": "pod-name"}, {"a": 1}])
def test_no_texts(value: object) -> None:
    """What is no object of texts and words is an error with its place."""
    with pytest.raises(MinitError, match='^app "web": annotation minit/expand'):
        planned(value)


@given(st.text(alphabet="ab@", max_size=30))
def test_nothing_else_changes(text: str) -> None:
    """All but the texts stays."""
    assert expand(text, (("@", "host-ip"),), Addresses(uuid="", host="@")) == text


def sysctls(value: object, *, own_ipc: bool = True, own_network: bool = True) -> list[tuple[str, str]]:
    """Return the settings of an annotation."""
    manifest = PodManifest(ac_version="0.8.11", annotations=(("minit/sysctls", json.dumps(value)),))
    return [(each.path, each.value) for each in plan_sysctls(manifest, own_ipc=own_ipc, own_network=own_network)]


def test_settings() -> None:
    """A setting of the pod's IPC or network namespace is a file below /proc/sys."""
    value = {"kernel.sem": "1 2 3 4", "net.ipv4.conf.eth0.rp_filter": "1"}
    assert sysctls(value) == [("kernel/sem", "1 2 3 4"), ("net/ipv4/conf/eth0/rp_filter", "1")]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"kernel.core_pattern": "|x"}, "no setting that a pod has for itself"),
        ({"net.netfilter.nf_hooks_lwtunnel": "1"}, "no setting that a pod has for itself"),
        ({"net.ipv4.../../kernel.core_pattern": "x"}, "no setting that a pod has for itself"),
        ({"net.ipv4.tcp_wmem\n": "x"}, "no setting that a pod has for itself"),
        ({"net.ipv4.tcp_wmem": "1\n2"}, "expected a line of text"),
        ({"net.ipv4.tcp_wmem": 1}, "expected a line of text"),
        (["net.ipv4.tcp_wmem"], "expected an object"),
    ],
)
def test_no_settings(value: object, message: str) -> None:
    """One that is the machine's, or no text, is refused."""
    with pytest.raises(MinitError, match=message):
        sysctls(value)


def test_settings_of_the_host() -> None:
    """Those of a namespace that is the host's are refused."""
    with pytest.raises(MinitError, match="whose IPC namespace the pod has"):
        sysctls({"kernel.sem": "1"}, own_ipc=False)
    with pytest.raises(MinitError, match="whose network the pod has"):
        sysctls({"net.core.somaxconn": "1"}, own_network=False)
