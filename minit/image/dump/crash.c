/*
 * The last words of a program that faults: whether its file is damaged, and the way back to the program before.
 *
 * A bit that has changed on the disk would end it by a signal, without a word. To look at all of the file takes longer
 * than a start, so that is done when something has gone wrong. A program that another can take the place of is removed
 * then, and the other one runs if nothing has been done yet. All of this is before everything else, see guard.c.
 *
 * A process that executes a new version of its program gives it a way back (minit/linux/ownprogram.py): a fault, an
 * abort(3), or two seconds without a word that all is well, and the process executes its old program with its old state.
 */
#include "dump.h"
#include "systemcall.h"
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

/* What damaged code and addresses end in; abort(3) has found a damaged stack, say. */
GUARDED_DATA static const int faults[] = {SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV, SIGABRT};
GUARDED_DATA static const char file[] = "/proc/self/exe", ended[] = "minit: ended by signal ", name[] = "minit: ",
                               removed[] = " was damaged, and is removed\n",
                               damaged[] = " is damaged: see minit image verify\n";
enum { BACK_AT = 4, BACK_SECONDS = 2, OVERFLOW_GID = 65534 };

/* As rt_sigaction(2) and sigaltstack(2) take them. */
struct kernel_action {
    void (*handler)(int, siginfo_t *, void *);
    unsigned long flags;
    void (*restorer)(void);
    unsigned long mask;
};
static char own_stack[1 << 16]; /* the program's own may have no room left */
static char **other, **variables;
static char **old_arguments; /* of the old program, while there is a way back */
static long old_program;

#if defined(__x86_64__)
#define FLAGS (SA_SIGINFO | SA_ONSTACK | SA_NODEFER | 0x04000000UL /* SA_RESTORER */)
__asm__(".section guard, \"ax\"\n"
        "restorer: mov $15, %eax\n" /* rt_sigreturn(2) */
        "    syscall\n"
        ".previous\n");
extern void restorer(void) __asm__("restorer");
#else
#define FLAGS (SA_SIGINFO | SA_ONSTACK | SA_NODEFER)
#define restorer NULL
#endif

GUARD static void say(const char *text)
{
    long length = 0;

    while (text[length])
        length++;
    system_call(SYS_write, 2, (long)text, length, 0, 0);
}

/* Of the words of a file before `end`: another one for each change of a word. */
GUARD unsigned long sum_of(long fd, long end)
{
    static unsigned long words[1 << 13];
    unsigned long sum = 0;
    long length;

    for (long at = 0; at < end; at += length) {
        long wanted = end - at < (long)sizeof words ? end - at : (long)sizeof words;
        length = system_call(SYS_pread64, fd, (long)words, wanted, at, 0);
        if (length <= 0)
            return 0;
        for (long i = 0; i < length / (long)sizeof *words; i++)
            sum = (sum ^ words[i]) * 0x100000001b3;
    }
    return sum;
}

GUARD static int is_damaged(void)
{
    unsigned long sum = 0;
    long fd = system_call(SYS_openat, AT_FDCWD, (long)file, O_RDONLY | O_CLOEXEC, 0, 0), end;

    if (fd < 0)
        return 0;
    end = system_call(SYS_lseek, fd, 0, SEEK_END, 0, 0) - sizeof sum;
    system_call(SYS_pread64, fd, (long)&sum, sizeof sum, end, 0);
    end = sum == sum_of(fd, end);
    system_call(SYS_close, fd, 0, 0, 0, 0);
    return !end;
}

GUARD void tell_damage(void)
{
    static char path[PATH_MAX];
    int is_removed;

    if (!is_restored || system_call(SYS_readlinkat, AT_FDCWD, (long)file, (long)path, sizeof path - 1, 0) < 0 || !is_damaged())
        return;
    is_removed = guarded_end && system_call(SYS_unlinkat, AT_FDCWD, (long)path, 0, 0, 0) == 0;
    say(name);
    say(path);
    say(is_removed ? removed : damaged);
}

EARLY static void set_alarm(long seconds)
{
    struct itimerval alarm = {.it_value = {.tv_sec = seconds}};

    system_call(SYS_setitimer, ITIMER_REAL, (long)&alarm, 0, 0, 0);
}

EARLY static void go_back(void)
{
    set_alarm(0);
    /* With another effective group than the real one the memory is nobody's to trace (execution.py). */
    system_call(SYS_setresgid, -1, OVERFLOW_GID, -1, 0, 0);
    system_call(SYS_execveat, old_program, (long)"", (long)old_arguments, (long)variables, AT_EMPTY_PATH);
}

GUARD static void on_fault(int number, siginfo_t *info, void *context)
{
    struct kernel_action usual = {0};
    char text[] = {'0' + number / 10, '0' + number % 10, '\n', 0}, *digits = number < 10 ? text + 1 : text;

    int is_abort = number == SIGABRT && info->si_pid == system_call(SYS_getpid, 0, 0, 0, 0, 0);
    int is_sent = info->si_code <= 0 && !is_abort;

    (void)context;
    if (old_arguments) {
        if (is_sent)
            return; /* anybody in the pod could have sent it */
        go_back();
        old_arguments = NULL;
    }
    system_call(SYS_rt_sigaction, number, (long)&usual, 0, sizeof usual.mask, 0);
    if (is_sent) {
        system_call(SYS_kill, system_call(SYS_getpid, 0, 0, 0, 0, 0), number, 0, 0, 0);
        return;
    }
    say(ended);
    say(digits);
    tell_damage();
    if (other)
        system_call(SYS_execve, (long)other[0], (long)other, (long)variables, 0, 0);
    /* It comes again, by the same instruction. */
}

GUARD static void watch(int number)
{
    struct kernel_action action = {.handler = on_fault, .flags = FLAGS, .restorer = restorer};

    system_call(SYS_rt_sigaction, number, (long)&action, 0, sizeof action.mask, 0);
}

EARLY static int equal(const char *text, const char *other)
{
    while (*text && *text == *other)
        text++, other++;
    return *text == *other;
}

/* PROGRAM -c TEXT STATE --back DESCRIPTOR ARGUMENT...: what the process executes with its state, and what it did before. */
EARLY void find_way_back(long count, char **argv)
{
    /* An entrypoint may have any words. */
    if (count <= BACK_AT + 2 || !equal(argv[1], "-c") || !equal(argv[BACK_AT], "--back"))
        return;
    for (const char *digit = argv[BACK_AT + 1]; *digit; digit++)
        old_program = 10 * old_program + *digit - '0';
    old_arguments = argv + BACK_AT + 2;
    /* Faults are watched in any case. */
    watch(SIGALRM);
    set_alarm(BACK_SECONDS);
}

GUARD void watch_faults(char **plain, char **environment)
{
    stack_t stack = {.ss_sp = own_stack, .ss_size = sizeof own_stack};

    other = plain;
    variables = environment;
    system_call(SYS_sigaltstack, (long)&stack, 0, 0, 0, 0);
    for (unsigned i = 0; i < sizeof faults / sizeof *faults; i++)
        watch(faults[i]);
}

/* From here on nothing leads back to the old program. */
void forget_way_back(void)
{
    struct kernel_action usual = {0};

    set_alarm(0);
    old_arguments = NULL;
    system_call(SYS_rt_sigaction, SIGALRM, (long)&usual, 0, sizeof usual.mask, 0);
}

/* From here on the other one could do something twice. */
void forget_other(void)
{
    other = NULL;
}
