"""The system calls that an app may make, and the refusal of others."""

from __future__ import annotations

import errno

from minit.base.value import Value

# Of the annotation minit/seccomp, whose other values are profiles.
WORD_UNCONFINED = "unconfined"
WORD_GUARDED = "guarded"
WORD_CAPABILITIES = "by-capabilities"
SECCOMP_WORDS = (WORD_UNCONFINED, WORD_GUARDED, WORD_CAPABILITIES)
MAXIMUM_PROFILE_BYTES = 1 << 18


class SeccompPolicy(Value):
    """
    The system calls that an app may make: those of a whitelist, or, with `is_blacklist`, all but those of a list.

    `names` are system calls, some of which this machine may not have; None stands for the default whitelist. `own` are
    those that the manifest names one by one. A call that is refused fails with `error`, an errno; None kills the app.
    `opened` are allowed beside them, and no guard of the host refuses them.
    """

    is_blacklist: bool = False
    names: frozenset[str] | None = None
    own: tuple[str, ...] = ()
    error: int | None = None
    opened: frozenset[str] = frozenset()

    @property
    def is_default(self) -> bool:
        """Tell whether the calls are those of the default whitelist."""
        return self.names is None

    def describe(self) -> str:
        """Return the decision as a line for --debug."""
        if self.names is None:
            calls = "the default whitelist" + (f" and {' '.join(sorted(self.opened))}" if self.opened else "")
        else:
            calls = f"{'all but' if self.is_blacklist else 'only'} {len(self.names)} listed"
        refusal = "are fatal" if self.error is None else f"fail with {errno.errorcode.get(self.error, self.error)}"
        return f"system calls: {calls}, others {refusal}"


DEFAULT_POLICY = SeccompPolicy()
LENIENT_POLICY = SeccompPolicy(error=errno.EPERM)
