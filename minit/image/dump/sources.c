/*
 * Whether a restored program is what would be made of its sources now, and what is run in its place if not.
 *
 * Such a program is called with the path of another before its arguments. That one is executed with the same ones, if
 * a source has changed, if the caller wants something else of an interpreter than this one is, or if this one fails
 * before it starts.
 */
#include "dump.h"
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

/* The size of a file in bytes, and the time of its last change. */
struct identity {
    int64_t size, seconds, nanoseconds;
};

/* For each file its path, a zero, and the numbers of `struct identity`. */
static SAVED PyObject *sources;
static char **plain;

void keep_sources(PyObject *bytes)
{
    Py_XINCREF(bytes);
    sources = bytes;
}

int has_sources(void)
{
    return sources != NULL;
}

static int is_unchanged(const char *path, const struct identity *expected)
{
    struct stat status;

    return !stat(path, &status) && status.st_size == expected->size && status.st_mtim.tv_sec == expected->seconds &&
           status.st_mtim.tv_nsec == expected->nanoseconds;
}

static int are_unchanged(void)
{
    const char *path = PyBytes_AS_STRING(sources), *end = path + PyBytes_GET_SIZE(sources);
    struct identity expected;

    for (; path < end; path += sizeof expected) {
        const char *after = path + strlen(path) + 1;
        memcpy(&expected, after, sizeof expected);
        if (!is_unchanged(path, &expected))
            return 0;
        path = after;
    }
    return 1;
}

/* The encoding that a dumped interpreter has, or that Python itself chooses where the locale names none. */
static int is_utf8(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    const char *value = NULL, *encoding;

    for (size_t i = 0; i < sizeof names / sizeof *names && (!value || !*value); i++)
        value = getenv(names[i]);
    if (!value || !*value || !strcmp(value, "C") || !strcmp(value, "POSIX"))
        return 1;
    encoding = strchr(value, '.');
    return encoding && (!strncasecmp(encoding, ".utf-8", 6) || !strncasecmp(encoding, ".utf8", 5));
}

/* Variables for an interpreter, but for those without a meaning here and that which entrypoints/_dumped.py knows. */
static int is_told_something(void)
{
    static const char *const names[] = {"DONTWRITEBYTECODE=", "HASHSEED=", "NOUSERSITE=", "PYCACHEPREFIX=", "UNBUFFERED="};

    for (char **variable = environ; *variable; variable++) {
        size_t i = 0;
        if (strncmp(*variable, "PYTHON", strlen("PYTHON")))
            continue;
        while (i < sizeof names / sizeof *names && strncmp(*variable + strlen("PYTHON"), names[i], strlen(names[i])))
            i++;
        if (i == sizeof names / sizeof *names)
            return 1;
    }
    return 0;
}

void run_plain(void)
{
    char **arguments = plain;

    plain = NULL;
    if (arguments)
        execv(arguments[0], arguments);
}

void check_sources(char **argv)
{
    if (!sources)
        return;
    if (!argv[0] || !argv[1])
        fail("this program is started by another, of which it wants the path");
    plain = argv + 1;
    if (!are_unchanged() || !is_utf8() || is_told_something()) {
        run_plain();
        fail("cannot run %s: %s", argv[1], strerror(errno));
    }
}

/* From here on the program does what it is for, which is done once. */
void trust_program(void)
{
    plain = NULL;
    forget_other();
}
