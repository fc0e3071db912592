"""What the built-in plugins did, beside what the reference plugins did."""

from __future__ import annotations

import re

from tests.support.comparison import STAGES, WORDS, Case, Facts, differences
from tests.support.referencecases import DELIBERATE, REFUSED

Seen = dict[str, Facts]

# A bridge stays, and what has its name. So does forwarding, with which the kernel follows no redirects. up0 is down
# when it comes back from a pod, and has lost its addresses. DEL of loopback brings lo down.
_STAYS = r"host (.*\b(br9|cni0|up0)\b.*|sysctl (.*forward.*|ipv4/conf/all/accept_redirects))|pod .*\blo\b.*"
_ANSWERS = (("added", "ADD"), ("checked", "CHECK"), ("deleted", "DEL"), ("again", "DEL"))


def assert_same(case: Case, theirs: Seen, ours: Seen) -> None:
    """Fail with all that differs and has no reason, and with what ours leaves after DEL."""
    added = (theirs["added"]["answer ADD.0 code"], ours["added"]["answer ADD.0 code"])
    if added == (1, 0) and case.name in REFUSED:
        assert {ours[stage][f"answer {command}.0 code"] for stage, command in _ANSWERS} == {0}
        return
    unexplained = {}
    for stage in STAGES:
        for name, values in differences(theirs.get(stage, {}), ours.get(stage, {})).items():
            # The reference plugins leave what they have made when they fail, until DEL.
            is_failure = name.endswith(WORDS) or (added == (1, 1) and stage == "added" and not name.endswith("code"))
            if not is_failure and not any(one.explains(case, stage, name, values) for one in DELIBERATE):
                unexplained[f"{stage}: {name}"] = values
    shown = "\n".join(f"{name}: theirs {values[0]!r}, ours {values[1]!r}" for name, values in unexplained.items())
    shown += "".join(
        f"\nof {who}, {text}" for who, seen in (("theirs", theirs), ("ours", ours)) for text in _words(seen)
    )
    assert not unexplained, f"\n{shown}"
    changed = differences(ours["before"], ours["again"]).items()
    left = [
        f"{name}: before {values[0]!r}, after DEL {values[1]!r}"
        for name, values in changed
        if not name.startswith("answer") and not re.fullmatch(_STAYS, name)
    ]
    assert not left, "\n".join(("", *left))


def _words(seen: Seen) -> list[str]:
    """Return the errors that were told."""
    return [
        f"{stage}: {name}: {value}" for stage in seen for name, value in seen[stage].items() if name.endswith(WORDS)
    ]
