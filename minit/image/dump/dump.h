/*
 * A program that writes itself, with the interpreter in it and every module it has imported, as a new program.
 *
 * CPython's objects live at fixed addresses: those it allocates in the arena, its variables in one section of their
 * own. The new program is the old one with both replaced by what they held. So exec(2) puts every object back where
 * it was, and a page of it is read when it is first used.
 *
 * Nothing of the C library is saved: it starts anew with each program, as do the stack, its own heap, the addresses
 * of mmap(2) and the canary of stacks. What CPython has got from it, and keeps, is renewed in restore.c.
 */
#pragma once
#define PY_SSIZE_T_CLEAN
#define Py_BUILD_CORE 1
#include <Python.h>
#include <stddef.h>

/* The largest that kernels have: a program that is laid out in these works on those with smaller ones. */
#if defined(__aarch64__)
#define PAGE 65536UL
#else
#define PAGE 4096UL
#endif

/* A variable that is saved. CPython's are, since layout.ld puts their sections into this one. */
#define SAVED __attribute__((section("saved")))
extern char __start_saved[], __stop_saved[];

extern int is_restored;
__attribute__((noreturn, format(printf, 1, 2))) void fail(const char *format, ...);

#define ARENA_BYTES (128UL << 20)
#define GRANULE 16UL /* what malloc(3) aligns to */
extern char arena[];
void *arena_malloc(size_t size);
void *arena_calloc(size_t count, size_t size);
void arena_free(void *block);
void *arena_pages(size_t size);
size_t arena_used(void);
size_t arena_filled(void);
void arena_seal(void);
#define HOT_PLACES 2
void arena_separate(const char *places, size_t count, const size_t *sizes);
void arena_number(unsigned *numbers);

/* profile.c */
void use_profile(const char *directory);
void finish_profile(const char *directory);
void watch_writes(void);

/* What loaded objects may use of this program; symbols.s, which program.py writes. */
struct symbol {
    const char *name;
    void *address;
};
extern const struct symbol program_symbols[];
extern int library_directory; /* a descriptor of where objects without a path lie */
void protect_objects(void);

void write_program(const char *path);
extern const long guarded_end;

/* Code of the first steps, which call nothing of the C library: anywhere. */
#define EARLY __attribute__((no_stack_protector, optimize("no-tree-loop-distribute-patterns")))
/* The same, and data, in the first pages of the code. */
#define GUARD __attribute__((section("guard"))) EARLY
#define GUARDED_DATA __attribute__((section("guard.data")))
/* In the first page of the file, with all that it needs. */
#define FIRST __attribute__((section("guard.first"))) EARLY
void watch_faults(char **plain, char **environment);
void find_way_back(long count, char **argv);
void forget_way_back(void);
void forget_other(void);
void tell_damage(void);
unsigned long sum_of(long fd, long end);

void keep_sources(PyObject *sources);
int has_sources(void);
void check_sources(char **argv);
void trust_program(void);
void run_plain(void);

void prepare_restore(PyObject *start);
int restore(char **argv);

void make_immortal(void);

PyObject *PyInit__syscalls(void);
