"""Pods on arm64: the contract of a stage1, of which the filters have the system calls of that processor."""

from __future__ import annotations

from pathlib import Path

import pytest

from minit.base.progress import silent
from minit.image.foreign import ARM64, foreign_stage1
from tests.support.campaign import FOR_ARM64
from tests.support.machine import AARCH64, BOOT_SECONDS, find_kernel
from tests.support.podmachine import run_pod_tests

# An emulated pod takes seconds.
_TESTS = (
    "test_new_privileges.py",
    "test_run_outcome.py::test_exit_code_reaches_the_caller_and_the_status_file",
    "test_run_outcome.py::test_files_for_stage0",
    *("test_seccomp.py::test_the_default", "test_seccomp.py::test_the_default_filters_are_in_the_image"),
    *("test_seccomp.py::test_a_profile", "test_seccomp.py::test_a_fatal_call_is_the_status_of_a_signal"),
)


@pytest.mark.skipif(not FOR_ARM64, reason="pods on arm64 are tried by make test-arm64")
@pytest.mark.timeout(12 * BOOT_SECONDS)
def test_pods_on_arm64(tmp_path: Path) -> None:
    """Statuses of apps are kept, and apps have the filters and privileges that they should, on that processor."""
    kernel = find_kernel(AARCH64)
    stage1, obstacle = foreign_stage1(ARM64, AARCH64.directory, silent)
    assert obstacle is None
    run_pod_tests(kernel, tmp_path, stage1, [f"tests/contract/{name}" for name in _TESTS])
