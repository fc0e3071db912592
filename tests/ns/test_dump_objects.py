"""The loader of a dump: shared objects of kinds that those of an image may have."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from minit.base.errors import ImageError
from minit.image.dump.program import LINKED_IN, REPLACED, Recipe, build_dump, obstacle
from minit.image.interpreter import copy_interpreter, loaded_libraries
from minit.image.pythonmodules import Module, stage1_modules

pytestmark = pytest.mark.skipif(obstacle() is not None, reason="this Python cannot be dumped")

PROBE = """\
#include <stdint.h>
#include <sys/auxv.h>
#define FOUR(start) &numbers[start], &numbers[start + 1], &numbers[start + 2], &numbers[start + 3]
#define SIXTEEN(start) FOUR(start), FOUR(start + 4), FOUR(start + 8), FOUR(start + 12)
static int numbers[64];
int constructed;
/* More addresses than one word of bits has, and a gap that is longer than that. */
int *table[200] = {SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48), FOUR(0), 0, FOUR(4), [199] = numbers + 7};
int zeros[16];
__thread int calls = 5;
__thread int *pointer = numbers + 3;
__thread char line[64] __attribute__((aligned(64)));
unsigned long processor = 1;

__attribute__((constructor)) static void construct(void)
{
    processor = getauxval(AT_HWCAP);
    for (int i = 0; i < 64; i++)
        numbers[i] = i;
    constructed++;
}

#if defined(__x86_64__)
#define CALL "call"
#else
#define CALL "bl"
#endif
int initialized;
__attribute__((used, visibility("hidden"))) void initialize(void) { initialized++; }
__asm__(".section .init; " CALL " initialize; .previous");

int has_table(void)
{
    for (int i = 0; i < 64; i++)
        if (*table[i] != i)
            return 0;
    return *table[67] == 3 && !table[68] && *table[69] == 4 && !table[198] && *table[199] == 7;
}

int count_calls(void) { return ++calls; }
int at_pointer(void) { return *pointer; }
int is_aligned(void) { return (uintptr_t)line % 64 == 0 && !line[63]; }
int knows_processor(void) { return processor == 0 && getauxval(AT_HWCAP) != 0; }
"""

ASK = """\
import ctypes
probe = ctypes.CDLL("probe.so.1")
print(ctypes.c_int.in_dll(probe, "constructed").value, probe.has_table(), probe.count_calls(), probe.count_calls())
print(probe.at_pointer(), probe.is_aligned(), probe.knows_processor())
before = ctypes.c_int.in_dll(probe, "initialized").value
probe._init()
print(before, ctypes.c_int.in_dll(probe, "initialized").value)
"""

REFUSED = {
    "a function for each kind of processor": """\
static int answer(void) { return 42; }
static void *choose(void) { return answer; }
int chosen(void) __attribute__((ifunc("choose")));
int ask(void) { return chosen(); }
""",
    "unknown kind": """\
__thread int near __attribute__((tls_model("initial-exec")));
int ask(void) { return near; }
""",
    "a thread's variable of another object": "extern __thread int missing;\nint ask(void) { return missing; }\n",
}
OTHER = "__thread int missing;\n"


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> list[Module]:
    """Those of the image."""
    return stage1_modules(tmp_path_factory.mktemp("standins"))


@pytest.fixture(scope="module")
def interpreter(modules: list[Module], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the interpreter that runs this."""
    copy = tmp_path_factory.mktemp("interpreter") / "copy"
    copy_interpreter(copy, modules)
    return copy


def make_object(path: Path, source: str, *arguments: str) -> Path:
    """Compile a shared object and return its path."""
    command = ["cc", "-shared", "-fPIC", "-O1", "-xc", "-", "-xnone", *arguments, "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def dump(interpreter: Path, place: Path, names: list[str], probe: Path, *others: Path) -> Path:
    """Return a program that has imported modules, and loaded the object `probe`."""
    scratch = place / "scratch"
    scratch.mkdir()
    library = interpreter / "lib"
    objects = [path for path in library.rglob("*.so*") if not path.name.startswith(LINKED_IN)]
    directory = next(library.glob("python3.*"))
    libraries = [*loaded_libraries(), probe.name]
    arguments = ("", *names, *libraries)
    recipe = Recipe(seed=1, modules="/proc/self/cwd", arguments=arguments, scratch=scratch, directory=directory)
    build_dump(place / "program", recipe, names, [*objects, probe, *others])
    return place / "program"


def test_an_object_is_what_the_loader_makes_it(interpreter: Path, modules: list[Module], tmp_path: Path) -> None:
    """
    Constructors have run once, without a processor, and DT_INIT is left to who calls it.

    Packed relocations and variables of threads are right.
    """
    names = [module.name for module in modules if module.name != REPLACED]
    probe = make_object(tmp_path / "probe.so.1", PROBE, "-Wl,-z,pack-relative-relocs")
    sections = subprocess.run(["readelf", "-SW", probe], capture_output=True, text=True, check=True).stdout
    # Linkers for arm64 ignore the option up to some version.
    assert " RELR " in sections or os.uname().machine != "x86_64"
    program = dump(interpreter, tmp_path, names, probe)
    for _ in range(2):
        done = subprocess.run([program, "-c", ASK], capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("1 1 6 7\n3 1 1\n0 1\n", "")


@pytest.mark.parametrize("reason", REFUSED)
def test_an_object_that_cannot_be_loaded_is_named(interpreter: Path, tmp_path: Path, reason: str) -> None:
    """An object that the loader cannot take makes no dump, and the message names the object and its need."""
    other = make_object(tmp_path / "other.so.1", OTHER)
    probe = make_object(tmp_path / "probe.so.1", REFUSED[reason], str(other))
    with pytest.raises(ImageError, match=rf"probe\.so\.1 .*{reason}"):
        dump(interpreter, tmp_path, [], probe, other)
