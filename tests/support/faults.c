/*
 * Runs a program and writes down the system calls of it and of all it forks, or makes one of them fail, or kills the
 * process that makes it. Unlike strace's, whose -e inject counts the calls of each process alike, a fault here is for
 * one process: PID 1's third move_mount(2) fails while those of its apps are left alone.
 *
 * faults FD EXECS -- PROGRAM ARG...                          writes a line "WHO NUMBER" for each call
 * faults FD EXECS WHO NUMBER NTH ERRNO -- PROGRAM ARG...     the NTH such call of WHO fails; with ERRNO 0 WHO dies at it,
 *                                                            with -1 WHO never comes back from it
 * faults FD 1 0 NUMBER NTH ERRNO -p PID                      the same with a process that runs already, alone, and
 *                                                            goes on if this one is killed
 *
 * WHO is "0" for the program, and what it forks is "0.0", "0.1" and so on, in order, and in the same way further down.
 * All of it begins at the program's EXECS-th execve(2), and ends for what is not the program itself at its own: an app
 * that runs is left alone. With a negative EXECS so is all that the program forks. NUMBER is -1 for any call. What is
 * written goes to the descriptor FD; of a fault it is the line "WHO NUMBER" of that call when it is reached. Ends as the
 * program does, once all that is traced has ended.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROCESSES 256
#define WHO_SIZE 64
#define FOLLOW (PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE)
#define OPTIONS (PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL)

struct process {
    pid_t pid;
    char who[WHO_SIZE]; /* empty until the event of its parent tells */
    int stopped;        /* waits for that event */
    int children;
    long hits;          /* of the call to fail */
    int failing;        /* is inside that call */
    int held;           /* for ever */
};

static struct process processes[PROCESSES];
static FILE *events;
static int execs_left, alone, started;
static const char *victim;
static long victim_number, victim_nth;
static int victim_errno, done;

static void die(const char *what)
{
    fprintf(stderr, "faults: %s: %s\n", what, strerror(errno));
    exit(99);
}

static struct process *find(pid_t pid)
{
    struct process *free_one = NULL;

    for (int i = 0; i < PROCESSES; i++) {
        if (processes[i].pid == pid)
            return &processes[i];
        if (!free_one && !processes[i].pid)
            free_one = &processes[i];
    }
    if (!free_one) {
        errno = ENOSPC;
        die("processes");
    }
    memset(free_one, 0, sizeof *free_one);
    free_one->pid = pid;
    return free_one;
}

/* A process may have been killed meanwhile; its end is what waitpid(2) tells next. */
static void resume(struct process *process, int signal)
{
    if (process->held)
        return;
    ptrace(started ? PTRACE_SYSCALL : PTRACE_CONT, process->pid, 0, signal);
}

static void replace_call(pid_t pid)
{
#if defined(__x86_64__)
    struct user_regs_struct registers;

    ptrace(PTRACE_GETREGS, pid, 0, &registers);
    registers.orig_rax = -1;
    ptrace(PTRACE_SETREGS, pid, 0, &registers);
#elif defined(__aarch64__)
    int number = -1;
    struct iovec vector = {&number, sizeof number};

    ptrace(PTRACE_SETREGSET, pid, NT_ARM_SYSTEM_CALL, &vector);
#endif
}

static void replace_result(pid_t pid, long result)
{
    struct user_regs_struct registers;
    struct iovec vector = {&registers, sizeof registers};

    ptrace(PTRACE_GETREGSET, pid, NT_PRSTATUS, &vector);
#if defined(__x86_64__)
    registers.rax = result;
#elif defined(__aarch64__)
    registers.regs[0] = result;
#endif
    ptrace(PTRACE_SETREGSET, pid, NT_PRSTATUS, &vector);
}

static void on_call(struct process *process)
{
    struct __ptrace_syscall_info info;

    if (ptrace(PTRACE_GET_SYSCALL_INFO, process->pid, sizeof info, &info) < 0)
        return;
    if (info.op == PTRACE_SYSCALL_INFO_EXIT && process->failing) {
        process->failing = 0;
        replace_result(process->pid, -victim_errno);
    }
    if (info.op != PTRACE_SYSCALL_INFO_ENTRY)
        return;
    long number = info.entry.nr;
    if (victim) {
        if (done || strcmp(victim, process->who) || (victim_number >= 0 && victim_number != number)
            || ++process->hits != victim_nth)
            return;
        done = 1;
    }
    fprintf(events, "%s %ld\n", process->who, number);
    if (victim) {
        fflush(events);
        if (victim_errno < 0) {
            process->held = 1;
        } else if (victim_errno) {
            process->failing = 1;
            replace_call(process->pid);
        } else {
            kill(process->pid, SIGKILL);
        }
    }
}

static void on_event(struct process *process, int event, int signal)
{
    unsigned long message = 0;

    switch (event) {
    case PTRACE_EVENT_FORK:
    case PTRACE_EVENT_VFORK:
    case PTRACE_EVENT_CLONE:
        ptrace(PTRACE_GETEVENTMSG, process->pid, 0, &message);
        struct process *child = find(message);
        int index = process->children++;
        if (snprintf(child->who, WHO_SIZE, "%s.%d", process->who, index) >= WHO_SIZE)
            die("who");
        if (child->stopped)
            resume(child, 0);
        break;
    case PTRACE_EVENT_EXEC:
        if (strcmp(process->who, "0")) {
            ptrace(PTRACE_DETACH, process->pid, 0, 0);
            process->pid = 0;
            return;
        }
        if (--execs_left == 0) {
            started = 1;
            ptrace(PTRACE_SETOPTIONS, process->pid, 0, alone ? OPTIONS : OPTIONS | FOLLOW);
        }
        break;
    case PTRACE_EVENT_STOP:
        if (!process->who[0]) {
            process->stopped = 1;
            return;
        }
        if (signal != SIGTRAP) {
            ptrace(PTRACE_LISTEN, process->pid, 0, 0);
            return;
        }
        break;
    }
    resume(process, 0);
}

static void follow(pid_t root)
{
    int status, result = 0;
    pid_t pid;

    strcpy(find(root)->who, "0");
    while ((pid = waitpid(-1, &status, __WALL)) > 0 || errno == EINTR) {
        if (pid < 0)
            continue;
        struct process *process = find(pid);
        if (!WIFSTOPPED(status)) {
            process->pid = 0;
            if (pid == root)
                result = status;
        } else if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
            on_call(process);
            resume(process, 0);
        } else if (status >> 16) {
            on_event(process, status >> 16, WSTOPSIG(status));
        } else {
            resume(process, WSTOPSIG(status));
        }
    }
    fflush(events);
    if (WIFSIGNALED(result))
        raise(WTERMSIG(result));
    exit(WEXITSTATUS(result));
}

int main(int argc, char **argv)
{
    int first = argc > 3 && !strcmp(argv[3], "--") ? 4 : argc > 7 ? 8 : 0;
    int gate[2];
    char byte;
    pid_t pid = 0;

    if (!first || first >= argc || !(events = fdopen(atoi(argv[1]), "w")) || pipe(gate) < 0)
        die("usage");
    execs_left = abs(atoi(argv[2]));
    alone = argv[2][0] == '-';
    if (first == 8) {
        victim = argv[3];
        victim_number = atol(argv[4]);
        victim_nth = atol(argv[5]);
        victim_errno = atoi(argv[6]);
    }
    if (first == 8 && !strcmp(argv[7], "-p"))
        pid = atoi(argv[8]);
    started = pid != 0;
    if (!started && (pid = fork()) < 0)
        die("fork");
    if (pid == 0) {
        close(gate[1]);
        close(fileno(events));
        if (read(gate[0], &byte, 1) < 0)
            die("read");
        close(gate[0]);
        execvp(argv[first], argv + first);
        die(argv[first]);
    }
    if (ptrace(PTRACE_SEIZE, pid, 0, started ? PTRACE_O_TRACESYSGOOD : OPTIONS) < 0
        || (started && ptrace(PTRACE_INTERRUPT, pid, 0, 0) < 0))
        die("ptrace");
    /* What the program was given is its own: a lock, or the last end of a pipe. */
    dup2(fileno(events), 3);
    if (fileno(events) != 3)
        events = fdopen(3, "w");
    close(gate[1]);
    close_range(4, ~0u, 0);
    close(0);
    close(1);
    follow(pid);
}
