"""The platforms of images as OCI and Docker spell them, and the choice of one; pure."""

from __future__ import annotations

from minit.base.processors import PROCESSORS, Processor
from minit.base.value import Value
from minit.manifest.reader import Node

_LINUX = "linux"


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
        if self.os != _LINUX:
            return self.architecture
        fitting = [processor for processor in PROCESSORS if processor.architecture == self.architecture]
        exact = [processor for processor in fitting if processor.name == f"{self.architecture}/{self.variant}"]
        # Without a known variant it is the least of them, which docker2aci took every arm for.
        return next((processor.appc for processor in (*exact, *reversed(fitting))), self.architecture)


def read_platform(node: Node) -> Platform:
    """Read `os`, `architecture` and `variant` of an object; the first two may be missing and are empty then."""
    return Platform(
        os=node["os"].optional(Node.string) or "",
        architecture=node["architecture"].optional(Node.string) or "",
        variant=node["variant"].optional(Node.string) or "",
    )


def platform_text(processor: Processor) -> str:
    """Return the platform of a Linux machine with that processor, as docker and skopeo show it."""
    return f"{_LINUX}/{processor.name}"


def choose_platform(offered: list[Platform], processor: Processor) -> int | None:
    """Return which of the platforms suits a Linux machine with that processor best, None if none does."""
    for variant in processor.variants:
        for index, platform in enumerate(offered):
            found = (platform.os, platform.architecture, platform.variant)
            if found == (_LINUX, processor.architecture, variant):
                return index
    return None
