"""
Renews the tables of `minit/plan/rights/syscallnumbers.py` from the kernel's headers of this machine: `make numbers`.

Debian has the headers in linux-libc-dev, for arm in linux-libc-dev-armhf-cross. The kernel never changes a number, so
a call that only the tables have is of a newer kernel than the headers, and stays.
"""

from __future__ import annotations

import re
import subprocess
import textwrap
from pathlib import Path

from minit.plan.rights import syscallnumbers
from minit.plan.rights.syscallnumbers import numbers_of

_X86 = "/usr/include/x86_64-linux-gnu"
# The calls that arch/arm64/include/uapi/asm/unistd.h selects.
_ARM64_CALLS = ("RENAMEAT", "NEW_STAT", "SET_GET_RLIMIT", "TIME32_SYSCALLS", "SYS_CLONE3", "MEMFD_SECRET")
# By architecture: the directory and name of the header, and macros to define.
_HEADERS = {
    "x86_64": (_X86, "asm/unistd_64.h", ()),
    "i386": (_X86, "asm/unistd_32.h", ()),
    "aarch64": ("/usr/include", "asm-generic/unistd.h", tuple(f"__ARCH_WANT_{call}" for call in _ARM64_CALLS)),
    "arm": ("/usr/arm-linux-gnueabihf/include", "asm/unistd.h", ("__ARM_EABI__",)),
}
_DEFINITION = re.compile(r"#define (__\w+) (.+)")
_CALL = re.compile(r"__(?:ARM_)?NR_([a-z_]\w*)")
_NO_CALLS = ("syscalls", "arch_specific_syscall")
# From here on a call has the same number everywhere, but for the few of ARM.
_FIRST_COMMON, _FIRST_OF_ARM = 424, 0xF0000


def read_headers(architecture: str) -> dict[str, int]:
    """Return the numbers of an architecture's calls by the headers of this machine, none without the headers."""
    directory, header, macros = _HEADERS[architecture]
    if not Path(directory, header).exists():
        return {}
    options = [f"-isystem{directory}", f"-include{header}", *(f"-D{macro}" for macro in macros)]
    command = ["cc", "-E", "-dM", *options, "-xc", "/dev/null"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    definitions = dict(_DEFINITION.findall(text))
    found = ((match[1], name) for name in definitions if (match := _CALL.fullmatch(name)))
    return {call: _evaluate(name, definitions) for call, name in found if call not in _NO_CALLS}


def _evaluate(expression: str, definitions: dict[str, str]) -> int:
    """Return the value of a number, a macro, or a sum of them."""
    if expression in definitions:
        return _evaluate(definitions[expression], definitions)
    if "+" in expression:
        return sum(_evaluate(part.strip(), definitions) for part in expression.strip("()").split("+"))
    return int(expression, 0)


def _table(numbers: dict[str, int]) -> str:
    words, following = [], 0
    for name, number in sorted(numbers.items(), key=lambda item: (item[1], item[0])):
        words += [name] if number == following else [str(number), name]
        following = number + 1
    return textwrap.fill(" ".join(words), 120, initial_indent="    ", subsequent_indent="    ", break_long_words=False)


def main() -> None:
    """Write the tables; SystemExit for a number that the tables and the headers have differently."""
    common: dict[str, int] = {}
    tables = {}
    for architecture in _HEADERS:
        known, read = numbers_of(architecture), read_headers(architecture)
        for name, number in read.items():
            if known.get(name, number) != number:
                raise SystemExit(f"{architecture}: {name} is {number} in the headers, {known[name]} in the tables")
        numbers = known | read
        shared = {name: number for name, number in numbers.items() if _FIRST_COMMON <= number < _FIRST_OF_ARM}
        common |= shared
        tables[architecture] = {name: number for name, number in numbers.items() if name not in shared}
        print(f"{architecture}: {len(read)} calls in the headers, {len(numbers)} in the table")
    path = Path(syscallnumbers.__file__)
    text = path.read_text()
    for name, numbers in (tables | {"common": common}).items():
        table = f'_{name.upper()} = """\n{_table(numbers)}\n"""'
        text, count = re.subn(rf'^_{name.upper()} = """\n.*?\n"""$', table, text, flags=re.MULTILINE | re.DOTALL)
        assert count == 1, name
    path.write_text(text)


if __name__ == "__main__":
    main()
