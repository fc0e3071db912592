"""AppArmor profiles: those that a kernel has, and those that an app may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from minit.base.errors import PlanError
from minit.base.value import replace
from minit.launcher.start.load import read_loaded_profiles
from minit.manifest.pod import RuntimeApp
from minit.plan.inputs.hostfacts import HostFacts
from minit.plan.rights.seccompprofile import plan_apparmor

FACTS = HostFacts(effective_uid=0, kernel_release="6.1", has_cgroups=True)


def make_sysfs(root: Path, enabled: str, profiles: str | None) -> str:
    """Return a directory that is like /sys of a kernel that was built with AppArmor."""
    parameters, security = root / "module/apparmor/parameters", root / "kernel/security/apparmor"
    parameters.mkdir(parents=True)
    security.mkdir(parents=True)
    (parameters / "enabled").write_text(enabled)
    if profiles is not None:
        (security / "profiles").write_text(profiles)
    return str(root)


def test_loaded_profiles(tmp_path: Path) -> None:
    """Names may have spaces and brackets; the mode is the last word."""
    sysfs = make_sysfs(tmp_path, "Y\n", "web (enforce)\n/usr/bin/man (x) (complain)\nsnap//a b (kill)\n")
    assert read_loaded_profiles(sysfs) == frozenset(("web", "/usr/bin/man (x)", "snap//a b"))


def test_a_kernel_without(tmp_path: Path) -> None:
    """It has none, built in or not; where it has but nobody can tell which, that is an error."""
    assert read_loaded_profiles(str(tmp_path)) is None
    assert read_loaded_profiles(make_sysfs(tmp_path / "off", "N\n", None)) is None
    with pytest.raises(FileNotFoundError):
        read_loaded_profiles(make_sysfs(tmp_path / "unmounted", "Y\n", None))


def test_a_profile_has_to_be_loaded() -> None:
    """Otherwise the app would run without."""
    app = RuntimeApp(name="a", annotations=(("minit/apparmor-profile", "web"),))
    assert plan_apparmor(RuntimeApp(name="a"), FACTS) is None
    assert plan_apparmor(app, replace(FACTS, loaded_profiles=frozenset(("web",)))) == "web"
    for profiles, reason in ((None, "no AppArmor"), (frozenset(("we", "web ")), '"web" is not loaded')):
        with pytest.raises(PlanError, match=reason):
            plan_apparmor(app, replace(FACTS, loaded_profiles=profiles))
