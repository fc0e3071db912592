"""
Reasons why a test may be skipped although MINIT_TEST_STRICT=1 asks for every one: the only list of them.

Each entry is the reason of a skip, word for word.
"""

from __future__ import annotations

ALLOWED_SKIPS: frozenset[str] = frozenset(
    {
        "no rkt binary on PATH",  # rkt is archived, and no distribution of today carries it
        "rkt has no overlays with users of a pod's own",
        "the kernel's bridges know no VLANs",  # CONFIG_BRIDGE_VLAN_FILTERING is an option
        "the kernel does not filter bridged packets",  # br_netfilter is a module of its own, and may be missing
        "no qemu, or no kernel for it in build/kernel",  # `make test` gets both, from Debian
        "no qemu-system-aarch64, or no kernel and disk for it in build/arm64",  # `make test-arm64` gets them
        "no firmware in build/firmware, or no programs that make disks",  # `make test` gets both, from Debian
        "no sfdisk on PATH",
        "machines of arm64 in qemu keep nothing over a panic",
        "no kernel with all drivers in build/full-kernel",  # `make test-long` gets it, from Debian
        "no linker for programs of a firmware",  # binutils has it on x86-64
        "no Kubernetes in build/kubernetes",  # `make test-kube` builds it, from Debian 12
        "no runit on PATH or in build/supervisors",  # `make test` gets both, from Debian
        "no s6 on PATH or in build/supervisors",
        "no systemd on PATH or in build/supervisors",  # it is not unpacked: it needs far more than itself
        "no openrc on PATH or in build/supervisors",
        "no dinit on PATH or in build/supervisors",  # Debian 12 and 13 do not have it
        "no zsh on PATH",  # bash is always tried
        "no fish on PATH",
        "no dpkg-deb on PATH",
        "no groff on PATH",
        "no lintian on PATH",
        "no mandoc on PATH",
        "no /dev/fuse",
        "no /dev/loop-control that can be opened",  # most containers have none
        "no apparmor_parser on PATH",
        "no shellcheck on PATH",
        "no systemd-analyze on PATH",
        "building all that is published takes a minute",
        "no clean Debian in build/clean",  # `make test-long` makes one, from Debian
        "no Debian with systemd in build/systemd",  # `make test-long` makes one, from Debian 12
        "no Debian in build/builder, or no libraries in build/libraries",  # `make test-long` gets both
        "Debian's Python is of another version",  # than the one of the tests, of which pip's wheels are
        "pods on arm64 are tried by make test-arm64",
        "no podman on PATH",  # its rules of layers are tried by tar and by minit's own reader
        "the machine's podman knows no here-documents",  # Debian 12's does not, Debian 13's does
        "no skopeo on PATH",  # a stand-in plays its part in every other test
        "the machine's skopeo makes no keys of sigstore",  # Debian 12's does not, Debian 13's does
        "no umoci on PATH",  # as is a model of applying layers
        "Podman's profile is not installed",  # golang-github-containers-common has it; ours has the same shapes
        "no mkfs.xfs, or no xfs in the kernel",
        "no mkfs.ext4, or no ext4 in the kernel",
        "no other Python of that version on this machine",
        "other shells end when they cannot execute a file",  # Debian's sh is dash
        "this Python cannot be dumped",  # Debian's can: `make test` installs its static library
        "writes are traced on x86-64 only",
        "images for another processor are built on x86-64 alone",
        "no atheris for this Python",  # its wheels are for x86-64 and a few versions
        "the reference plugins that are installed are older",  # Debian 12 has 1.1.1
        "the kernel has no links of that kind",  # macvlan, ipvlan, vlan and dummy are options of it
        "the kernel has links of every kind",  # and so no kind can be missing
        "the kernel has no MPTCP",  # CONFIG_MPTCP, or the sysctl net.mptcp.enabled
    }
)
