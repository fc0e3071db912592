/*
 * Builds an interpreter, lets it import everything, and writes both as a new program:
 *
 *     PROGRAM OUTPUT SEED LIBRARIES MODULES PROFILE SCRIPT NAME...
 *
 * SCRIPT is Python text, run with the arguments NAME. Modules are looked for in MODULES, the shared libraries that they
 * need in LIBRARIES. Strings are hashed with SEED. PROFILE is a directory of what is known of other programs of these
 * modules (profile.c). The new program starts with the function that SCRIPT leaves as `start`, and runs another one in
 * its own place when it is not made of the `sources` any more, if SCRIPT leaves these.
 */
#include "dump.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/wait.h>
#include <unistd.h>

SAVED int is_restored;

__attribute__((noreturn)) void fail(const char *format, ...)
{
    va_list arguments;

    run_plain();
    va_start(arguments, format);
    dprintf(2, "minit: ");
    vdprintf(2, format, arguments);
    dprintf(2, "\n");
    va_end(arguments);
    _exit(254);
}

/* What is called instead of a function that the interpreter's static library lacks (program.py). */
__attribute__((noreturn)) void missing_function(void)
{
    fail("the static library of this interpreter has no SHA-2");
}

/*
 * The interpreter rewrites code for the values it has met, and one of these is the address by which a thread is
 * identified: executes this program again, with the same addresses each time.
 */
static void fix_addresses(char **argv)
{
    int persona = personality(0xFFFFFFFF);

    if (!(persona & ADDR_NO_RANDOMIZE) && personality(persona | ADDR_NO_RANDOMIZE) >= 0)
        execv("/proc/self/exe", argv);
}

/*
 * Modules ask for the number of their process. Small numbers are objects that exist, others take memory, and this decides
 * where all that follows lies: goes on in a child whose number is not small.
 */
static void leave_small_numbers(void)
{
    enum { LARGEST_SMALL = 256 };
    pid_t child = 0;
    int status = 0;

    while (getpid() <= LARGEST_SMALL) {
        child = fork();
        if (child < 0)
            fail("cannot fork: %s", strerror(errno));
        if (child == 0 && getpid() > LARGEST_SMALL)
            return;
        if (child == 0)
            _exit(0);
        if (waitpid(child, &status, 0) < 0 || status || child > LARGEST_SMALL)
            _exit(status ? 254 : 0);
    }
}

static void check(PyStatus status)
{
    if (PyStatus_Exception(status))
        fail("the interpreter does not start: %s", status.err_msg);
}

static void append_path(PyConfig *config, const char *directory, const char *below)
{
    char path[PATH_MAX];
    wchar_t *decoded;

    if (snprintf(path, sizeof path, "%s%s", directory, below) >= (int)sizeof path ||
        !(decoded = Py_DecodeLocale(path, NULL)))
        fail("%s is no path", directory);
    check(PyWideStringList_Append(&config->module_search_paths, decoded));
    PyMem_RawFree(decoded);
}

/* Every path is given, so that getpath looks for none; the objects that modules leave have no other of this machine. */
static void initialize(unsigned long seed, const char *modules, int count, char **names)
{
    PyPreConfig before;
    PyConfig config;
    wchar_t **const paths[] = {&config.executable, &config.base_executable, &config.prefix,
                               &config.base_prefix, &config.exec_prefix, &config.base_exec_prefix};

    PyPreConfig_InitIsolatedConfig(&before);
    before.utf8_mode = 1;
    before.allocator = PYMEM_ALLOCATOR_MALLOC;
    check(Py_PreInitialize(&before));
    PyImport_AppendInittab("_syscalls", PyInit__syscalls);
    PyConfig_InitIsolatedConfig(&config);
    config.site_import = 0;
    config.write_bytecode = 0;
    config.parse_argv = 0;
    config.install_signal_handlers = 1;
    config.use_hash_seed = 1;
    config.hash_seed = seed;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        check(PyConfig_SetString(&config, paths[i], L"/"));
    config.module_search_paths_set = 1;
    append_path(&config, modules, "");
    append_path(&config, modules, "/lib-dynload");
    check(PyConfig_SetBytesArgv(&config, count, names));
    check(Py_InitializeFromConfig(&config));
    PyConfig_Clear(&config);
}

int main(int argc, char **argv)
{
    PyObject *globals, *start;

    if (is_restored) {
        check_sources(argv);
        return restore(argv);
    }
    if (argc < 7)
        fail("usage: %s OUTPUT SEED LIBRARIES MODULES PROFILE SCRIPT NAME...", argv[0]);
    fix_addresses(argv);
    leave_small_numbers();
    library_directory = open(argv[3], O_PATH | O_CLOEXEC);
    if (library_directory < 0)
        fail("cannot open %s: %s", argv[3], strerror(errno));
    use_profile(argv[5]);
    initialize(strtoul(argv[2], NULL, 10), argv[4], argc - 7, argv + 7);
    if (PyRun_SimpleString(argv[6]) < 0)
        fail("nothing is written");
    globals = PyModule_GetDict(PyImport_AddModule("__main__"));
    start = PyDict_GetItemString(globals, "start");
    if (!start)
        fail("there is nothing to start with");
    Py_INCREF(start);
    keep_sources(PyDict_GetItemString(globals, "sources"));
    prepare_restore(start);
    finish_profile(argv[5]);
    write_program(argv[1]);
    _exit(0);
}
