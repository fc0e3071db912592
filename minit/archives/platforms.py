"""Operating systems and processors as OCI calls them, as appc calls them, and which of them this machine is; pure."""

from __future__ import annotations

from minit.manifest.reader import Node
from minit.value import Value

# uname(2)'s machine to the architecture of an image, and its variants from the best to the least.
_MACHINES: dict[str, tuple[str, tuple[str, ...]]] = {
    "x86_64": ("amd64", ("", "v1")),  # what v2 and more need, not every machine has
    "i386": ("386", ("",)),
    "i686": ("386", ("",)),
    "aarch64": ("arm64", ("v8", "")),
    "armv7l": ("arm", ("v7", "v6", "v5", "")),
    "armv6l": ("arm", ("v6", "v5", "")),
    "ppc64": ("ppc64", ("",)),
    "ppc64le": ("ppc64le", ("",)),
    "s390x": ("s390x", ("",)),
}

# As docker2aci translates them, which leaves out the variant and so calls every arm an armv6l.
_APPC = {
    ("linux", "amd64"): "amd64",
    ("linux", "386"): "i386",
    ("linux", "arm64"): "aarch64",
    ("linux", "ppc64"): "ppc64",
    ("linux", "ppc64le"): "ppc64le",
    ("linux", "s390x"): "s390x",
}


class Platform(Value):
    """The platform of an image, as OCI and Docker spell it: `linux`, `arm`, `v7`."""

    os: str
    architecture: str
    variant: str = ""

    @property
    def text(self) -> str:
        """The platform as docker and skopeo show it: `linux/arm/v7`."""
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)

    @property
    def appc_architecture(self) -> str:
        """The appc name of the architecture, its own name if appc does not know it; the system's name is the same."""
        if (self.os, self.architecture) == ("linux", "arm"):
            return "armv7l" if self.variant == "v7" else "armv6l"
        return _APPC.get((self.os, self.architecture), self.architecture)


def read_platform(node: Node) -> Platform:
    """Read `os`, `architecture` and `variant` of an object; the first two may be missing and are empty then."""
    return Platform(
        os=node["os"].optional(Node.string) or "",
        architecture=node["architecture"].optional(Node.string) or "",
        variant=node["variant"].optional(Node.string) or "",
    )


def platform_of_machine(machine: str) -> tuple[Platform, tuple[str, ...]]:
    """Return the platform of a Linux machine, without variant, and the variants it runs, best first."""
    architecture, variants = _MACHINES.get(machine, (machine, ("",)))
    return Platform(os="linux", architecture=architecture), variants


def choose_platform(offered: list[Platform], machine: str) -> int | None:
    """Return which of the platforms suits the machine best, None if none does."""
    wanted, variants = platform_of_machine(machine)
    for variant in variants:
        for index, platform in enumerate(offered):
            if (platform.os, platform.architecture, platform.variant) == (wanted.os, wanted.architecture, variant):
                return index
    return None
