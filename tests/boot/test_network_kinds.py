"""The networks of kinds that not every kernel has: their own tests, on a kernel that has all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.campaign import LONG
from tests.support.machine import BOOT_SECONDS, Kernel
from tests.support.testmachine import run_tests

_LINKS = ("veth", "bridge", "dummy", "macvlan", "ipvlan", "8021q")
_MODULES = (*_LINKS, "nf_tables", "nft_chain_nat", "nft_masq", "nft_nat", "nft_ct", "nft_reject_inet")
_FILES = ("test_dual_stack.py", "test_pod_links.py", "test_pod_link_options.py")
_SAMPLE = (
    *(f"test_pod_links.py::test_an_attachment_from_beginning_to_end[{kind}]" for kind in ("dummy", "ipvlan-l3")),
    *("test_pod_links.py::test_pods_reach_each_other[ipvlan]", "test_pod_links.py::test_a_neighbour_is_reached[vlan]"),
    *("test_dual_stack.py::test_vlans_of_a_bridge", "test_dual_stack.py::test_trunks_of_a_bridge[False]"),
)
_MACHINES = {name: (name,) for name in _FILES} if LONG else {"sample": _SAMPLE}
# Its test is of a kernel that lacks something.
_SKIPPED = "the kernel has links of every kind"


@pytest.mark.timeout((6 if LONG else 3) * BOOT_SECONDS)
@pytest.mark.parametrize("machine", _MACHINES)
def test_on_a_kernel_with_all_kinds(kernel: Kernel, tmp_path: Path, machine: str) -> None:
    """What is skipped where the kernel lacks a kind of links, or VLANs of bridges, holds where it has them."""
    lines = run_tests(kernel, tmp_path, _MODULES, [f"tests/ns/{name}" for name in _MACHINES[machine]])
    assert [line for line in lines if line.startswith("SKIPPED") and _SKIPPED not in line] == []
