/*
 * The program that every entrypoint of the stage1 image is a copy of.
 *
 * stage0 executes <root>/entrypoints/NAME on the host, where <root> is wherever the image was
 * rendered. The kernel would resolve a "#!" line and the interpreter of a dynamic program against
 * the host's root, so this program is static, uses no C library, finds <root> from its own path,
 * and runs entrypoints/NAME.py with the interpreter, loader and libraries of the image. Where these are
 * one program that was dumped, it executes that (IS_DUMPED).
 *
 * The plugins of the CNI are symlinks to one entrypoint (PLUGINS), whose first argument is the name it was called by.
 *
 * They are executed through a detached read-only mount of <root>. What an entrypoint makes, PID 1 or
 * a command in an app, is a copy of it at first, and an image can name /proc/self/exe as the program
 * that it becomes: whoever opens that file for writing later must find it read-only, or the host
 * would execute what an app wrote (the class of CVE-2019-5736).
 */
#include "dump/systemcall.h"

#define PATH_SIZE 4096
#define AT_FDCWD (-100)
#define AT_EMPTY_PATH 0x1000
#define OPEN_TREE_CLONE 1
#define MOUNT_ATTR_RDONLY 1
#define MS_PRIVATE (1 << 18)
#define MS_NOSUID_NOEXEC (2 | 8)
#define MS_NOSUID_NODEV_NOEXEC (MS_NOSUID_NOEXEC | 4)
#define EPERM 1
#define ENOENT 2
#define PID_1 1
#define F_DUPFD 0
#define FIRST_OTHER_DESCRIPTOR 3
#define SIG_BLOCK 0
#define SIGINT 2
#define AT_RANDOM 25 /* of the auxiliary vector, getauxval(3) */
#define AT_EXECFN 31
#define PLUGINS "cni"
#define EXIT_FAILURE 254 /* what rkt's stage1 ends with when it fails itself */

/* The same on every architecture. */
enum { SYS_open_tree = 428, SYS_mount_setattr = 442 };

#if defined(__x86_64__)
enum {
    SYS_write = 1,
    SYS_close = 3,
    SYS_rt_sigprocmask = 14,
    SYS_getpid = 39,
    SYS_execve = 59,
    SYS_fcntl = 72,
    SYS_mount = 165,
    SYS_exit_group = 231,
    SYS_readlinkat = 267
};

__asm__(".globl _start\n"
        "_start:\n"
        "    xor %ebp, %ebp\n"
        "    mov %rsp, %rdi\n"
        "    and $-16, %rsp\n"
        "    call launch\n");
#elif defined(__aarch64__)
enum {
    SYS_fcntl = 25,
    SYS_mount = 40,
    SYS_close = 57,
    SYS_write = 64,
    SYS_readlinkat = 78,
    SYS_exit_group = 94,
    SYS_rt_sigprocmask = 135,
    SYS_getpid = 172,
    SYS_execve = 221
};

__asm__(".globl _start\n"
        "_start:\n"
        "    mov x29, #0\n"
        "    mov x0, sp\n"
        "    bl launch\n");
#endif

static char *append(char *end, const char *text)
{
    while (*text)
        *end++ = *text++;
    *end = 0;
    return end;
}

static char *append_number(char *end, long number)
{
    char digits[24];
    char *digit = digits + sizeof digits;

    *--digit = 0;
    do
        *--digit = '0' + number % 10;
    while ((number /= 10) > 0);
    return append(end, digit);
}

static __attribute__((noreturn)) void fail(const char *what, const char *path, long number)
{
    char line[PATH_SIZE + 256];
    char *end = append(append(append(append(line, "minit: "), what), " "), path);

    if (number < 0)
        end = append_number(append(end, ": errno "), -number);
    end = append(end, "\n");
    system_call(SYS_write, 2, (long)line, end - line, 0, 0);
    for (;;)
        system_call(SYS_exit_group, EXIT_FAILURE, 0, 0, 0, 0);
}

/* Replaces the path of the image by that of a read-only mount of it, which lasts as long as a descriptor. */
static void use_read_only_mount(char *path)
{
    unsigned long attributes[] = {MOUNT_ATTR_RDONLY, 0, MS_PRIVATE, 0};
    const char *root = *path ? path : "/";
    long tree = system_call(SYS_open_tree, AT_FDCWD, (long)root, OPEN_TREE_CLONE, 0, 0);
    long result;

    if (tree == -EPERM)
        return; /* not root: it can set up nothing, and the entrypoint says so */
    if (tree < 0)
        fail("cannot open the stage1 image", root, tree);
    result = system_call(SYS_mount_setattr, tree, (long)"", AT_EMPTY_PATH, (long)attributes, sizeof attributes);
    if (result < 0)
        fail("cannot make a read-only mount of the stage1 image", root, result);
    if (tree < FIRST_OTHER_DESCRIPTOR) {
        /* The caller has closed some of 0 to 2, which the entrypoint opens before anything else. */
        result = system_call(SYS_fcntl, tree, F_DUPFD, FIRST_OTHER_DESCRIPTOR, 0, 0);
        if (result < 0)
            fail("cannot keep a descriptor of the stage1 image", root, result);
        system_call(SYS_close, tree, 0, 0, 0, 0);
        tree = result;
    }
    append_number(append(path, "/proc/self/fd/"), tree);
}

static int starts_with(const char *text, const char *prefix)
{
    while (*prefix)
        if (*text++ != *prefix++)
            return 0;
    return 1;
}

static int equal(const char *text, const char *other)
{
    return starts_with(text, other) && starts_with(other, text);
}

/* Returns an entry of the vector that the kernel puts behind the environment, 0 if it has none of the type. */
static unsigned long auxiliary(char **vector, unsigned long type)
{
    unsigned long *entry = (unsigned long *)vector;

    while (*entry && *entry != type)
        entry += 2;
    return *entry ? entry[1] : 0;
}

/* Returns what the interpreter takes for a seed, of the bytes that the kernel gives every program. */
static long random_number(char **vector)
{
    unsigned *bytes = (unsigned *)auxiliary(vector, AT_RANDOM);

    return bytes ? *bytes : 0;
}

/* Returns the last component of the path by which this program was executed, whatever the caller says in argv[0]. */
static char *called_name(char **vector)
{
    char *path = (char *)auxiliary(vector, AT_EXECFN), *name = path ? path : "";

    for (; path && *path; path++)
        if (*path == '/')
            name = path + 1;
    return name;
}

/* Cuts the last component off path and returns it. */
static char *cut(char *path, char *end)
{
    while (end > path && *end != '/')
        end--;
    *end = 0;
    return end + 1;
}

__attribute__((noreturn, used)) void launch(long *stack)
{
    long argc = stack[0];
    char **argv = (char **)(stack + 1);
    char **environment = argv + argc + 1;
    long environment_length = 0;
    char path[PATH_SIZE], program[PATH_SIZE], libraries[PATH_SIZE], python[PATH_SIZE], command[PATH_SIZE], seed[64];
    char *name, *letter;
    long length, i, count, is_plugin, is_first = 0;

    /* Leave room in the other buffers for what is put after the root. */
    length = system_call(SYS_readlinkat, AT_FDCWD, (long)"/proc/self/exe", (long)path, PATH_SIZE - 64, 0);
    if (length == -ENOENT && system_call(SYS_getpid, 0, 0, 0, 0, 0) == PID_1) {
        /* The first program of a machine: nobody has mounted anything yet. */
        is_first = 1;
        length = system_call(SYS_mount, (long)"proc", (long)"/proc", (long)"proc", MS_NOSUID_NODEV_NOEXEC, 0);
        if (length < 0)
            fail("cannot mount proc on", "/proc", length);
        /* For null: the interpreter may have to open its standard streams. */
        system_call(SYS_mount, (long)"devtmpfs", (long)"/dev", (long)"devtmpfs", MS_NOSUID_NOEXEC, 0);
        length = system_call(SYS_readlinkat, AT_FDCWD, (long)"/proc/self/exe", (long)path, PATH_SIZE - 64, 0);
    }
    if (length < 0)
        fail("cannot find the stage1 image: readlink", "/proc/self/exe", length);
    if (length == PATH_SIZE - 64)
        fail("the path of the stage1 image is too long:", "/proc/self/exe", 0);
    path[length] = 0;
    name = cut(path, path + length);
    for (letter = name; *letter; letter++)
        /* The name becomes a part of a Python statement. */
        if (!((*letter >= 'a' && *letter <= 'z') || *letter == '_'))
            fail("not the name of an entrypoint:", name, 0);
    if (IS_DUMPED)
        append(command, name);
    else
        append(append(append(command, "from entrypoints."), name), " import main; main()");
    is_plugin = equal(name, PLUGINS);
    cut(path, name - 1);
    use_read_only_mount(path);

    append(append(program, path), IS_DUMPED ? "/usr/lib/minit/bin/minit" : "/usr/lib/minit/ld.so");
    append(append(libraries, path), "/usr/lib/minit/lib");
    append(append(python, path), "/usr/lib/minit/bin/python3");

    while (environment[environment_length])
        environment_length++;
    char *new_environment[environment_length + 3];
    for (i = count = 0; i < environment_length; i++)
        /* A library preloaded from the host is built for the host's C library, not the image's. */
        if (!starts_with(environment[i], "LD_") && !starts_with(environment[i], "LC_ALL=") &&
            !(is_first && starts_with(environment[i], "PYTHON")))
            new_environment[count++] = environment[i];
    /* Any other locale makes the C library read the host's locale files; Python is told to use UTF-8 below. */
    new_environment[count++] = "LC_ALL=C";
    if (is_first) {
        /* Where the kernel has no random numbers yet, the interpreter would wait a second for those it asks for. */
        append_number(append(seed, "PYTHONHASHSEED="), random_number(environment + environment_length + 1));
        new_environment[count++] = seed;
    }
    new_environment[count] = 0;

    /* For the seed without what else -I means beside -P and -s, that no variable is looked at. */
    char *option = is_first ? "-Ps" : "-I";
    /* The libraries are named: a loader of glibc 2.42 asks /proc where the program is, and is told of no mount there. */
    char *interpreted[] = {program, "--inhibit-cache", "--library-path", libraries, "--argv0", python, python, option,
                           "-S", "-B", "-X", "utf8", "-c", command};
    char *dumped[] = {program, command};
    char **head = IS_DUMPED ? dumped : interpreted;
    long head_length = IS_DUMPED ? sizeof dumped / sizeof *dumped : sizeof interpreted / sizeof *interpreted;
    char *new_argv[head_length + argc + 2];
    for (count = 0; count < head_length; count++)
        new_argv[count] = head[count];
    if (is_plugin)
        new_argv[count++] = called_name(environment + environment_length + 1);
    for (i = 1; i < argc; i++)
        new_argv[count++] = argv[i];
    new_argv[count] = 0;

    /* Until entrypoints/__init__.py unblocks it: while the interpreter starts, a Ctrl-C would print its traceback. */
    unsigned long interrupt = 1UL << (SIGINT - 1);
    system_call(SYS_rt_sigprocmask, SIG_BLOCK, (long)&interrupt, 0, sizeof interrupt, 0);

    fail("cannot run", program,
         system_call(SYS_execve, (long)program, (long)new_argv, (long)new_environment, 0, 0));
}
