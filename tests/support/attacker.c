/*
 * Programs of a hostile image, linked statically; each does what a shell cannot and says on stdout how far it got.
 *
 * attacker trace PID        attaches to a process, reads its memory, takes one of its descriptors
 * attacker exe FIFO         waits for a program in the pod that is not of the image, holds its file, ends it by FIFO,
 *                           and opens that file for writing
 * attacker swap A B         exchanges two names in their directory, without end
 * attacker keys NAME        looks for a key of that name in its session's keyring, and adds one called "own"
 * attacker procs            looks for procfs in every directory near the top, and what of the machine can be had there
 * attacker hunt COUNT       tries to get at what enters the pod, until it was refused COUNT times; says if it ever got in
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/keyctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROC_SUPER_MAGIC 0x9fa0
#define PROC_ROOT_INODE 1
#define MILLISECONDS 5000

static void say(const char *what, long result)
{
    printf("%s: %s\n", what, result < 0 ? strerror(errno) : "done");
}

static int trace(pid_t pid)
{
    char byte, path[64];
    struct iovec ours = {&byte, 1}, theirs = {(void *)0x400000, 1};
    int pidfd = syscall(SYS_pidfd_open, pid, 0);

    /* EFAULT is as good as a byte: it was the address that was wrong. */
    ssize_t got = process_vm_readv(pid, &ours, 1, &theirs, 1, 0);
    say("process_vm_readv", got < 0 && errno == EFAULT ? 0 : got);
    say("pidfd_getfd", syscall(SYS_pidfd_getfd, pidfd, 0, 0));
    for (const char **name = (const char *[]){"mem", "environ", "maps", "exe", "root/rkt", "cwd/rkt", "fd/0", NULL}; *name;
         name++) {
        snprintf(path, sizeof path, "/proc/%d/%s", pid, *name);
        int fd = open(path, O_RDONLY | O_NONBLOCK);
        say(*name, fd < 0 ? fd : strcmp(*name, "environ") && strcmp(*name, "maps") ? 0 : read(fd, &byte, 1));
    }
    /* Last, as it stops the process. */
    say("ptrace", ptrace(PTRACE_ATTACH, pid, NULL, NULL));
    return 0;
}

static int find_foreign_program(void)
{
    struct stat own, shell, found;
    char path[300];

    stat("/proc/self/exe", &own);
    stat("/bin/busybox", &shell);
    for (int left = MILLISECONDS; left; left--) {
        DIR *directory = opendir("/proc");
        for (struct dirent *entry; (entry = readdir(directory));) {
            snprintf(path, sizeof path, "/proc/%s/exe", entry->d_name);
            int fd = strspn(entry->d_name, "0123456789") ? open(path, O_RDONLY) : -1;
            if (fd < 0)
                continue;
            /* Each app has the image's files on a filesystem of its own. */
            if (!fstat(fd, &found) && found.st_size != own.st_size && found.st_size != shell.st_size) {
                closedir(directory);
                return fd;
            }
            close(fd);
        }
        closedir(directory);
        usleep(1000);
    }
    return -1;
}

static int exe(const char *fifo)
{
    char path[64];
    struct statvfs mount;
    int fd = find_foreign_program(), end;

    if (fd < 0) {
        puts("no program found");
        return 0;
    }
    fstatvfs(fd, &mount);
    printf("found on a mount that is %s\n", mount.f_flag & ST_RDONLY ? "read-only" : "writable");
    while ((end = open(fifo, O_WRONLY | O_NONBLOCK)) < 0)
        usleep(1000);
    close(end);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    for (int left = MILLISECONDS; (end = open(path, O_WRONLY)) < 0 && errno == ETXTBSY && left; left--)
        usleep(1000);
    say("write", end);
    return 0;
}

static int swap(const char *a, const char *b)
{
    for (;;)
        if (renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) && errno != ENOENT)
            return 1;
}

static int keys(const char *name)
{
    say("search", syscall(SYS_keyctl, KEYCTL_SEARCH, KEY_SPEC_SESSION_KEYRING, "user", name, 0));
    say("add", syscall(SYS_add_key, "user", "own", "x", 1, KEY_SPEC_SESSION_KEYRING));
    return 0;
}

static int look_for_proc(const char *path, const struct stat *status, int type, struct FTW *where)
{
    struct statfs filesystem;
    struct stat found;
    char name[4200];

    if (type != FTW_D || where->level > 3)
        return FTW_SKIP_SUBTREE;
    if (statfs(path, &filesystem) || filesystem.f_type != PROC_SUPER_MAGIC)
        return FTW_CONTINUE;
    if (status->st_ino != PROC_ROOT_INODE)
        return FTW_SKIP_SUBTREE;
    printf("procfs at %s\n", path);
    snprintf(name, sizeof name, "%s/kallsyms", path);
    if (!stat(name, &found) && found.st_mode & 0777)
        printf("unmasked: %s\n", name);
    for (const char **file = (const char *[]){"sysrq-trigger", "sys/kernel/core_pattern", NULL}; *file; file++) {
        snprintf(name, sizeof name, "%s/%s", path, *file);
        if (open(name, O_WRONLY) >= 0)
            printf("writable: %s\n", name);
    }
    return FTW_SKIP_SUBTREE;
}

static int last_pid(void)
{
    char text[32] = "";
    int fd = open("/proc/sys/kernel/ns_last_pid", O_RDONLY);
    read(fd, text, sizeof text - 1);
    close(fd);
    return atoi(text);
}

/* Tells whether a process still is what minit forked: its program is not of the image. */
static int is_before_exec(int pid)
{
    char path[64], link[256] = "";
    snprintf(path, sizeof path, "/proc/%d/exe", pid);
    ssize_t length = readlink(path, link, sizeof link - 1);
    return length > 0 && strncmp(link, "/bin/", 5);
}

/* Tells whether the memory behind a descriptor is that from before an exec: it is gone, and reads as nothing. */
static int is_old_memory(int pid, int fd)
{
    char byte, path[64], link[256];
    if (is_before_exec(pid))
        return 1;
    /* So does the memory of a process that has ended, which has no program any more either. */
    snprintf(path, sizeof path, "/proc/%d/exe", pid);
    return pread(fd, &byte, 1, 0x400000) == 0 && readlink(path, link, sizeof link) > 0;
}

static int hunt(int goal)
{
    int refused = 0, next = last_pid() + 1, own = getpid();
    char byte, path[64];

    if (next <= own)
        next = own + 1;
    while (refused < goal) {
        if (kill(next, 0) < 0 && errno == ESRCH) {
            if (last_pid() >= next)
                next++;
            continue;
        }
        const char *won = NULL;
        struct iovec ours = {&byte, 1}, theirs = {(void *)0x400000, 1};
        snprintf(path, sizeof path, "/proc/%d/mem", next);
        int fd = open(path, O_RDWR);
        if (fd >= 0 && is_old_memory(next, fd))
            won = "mem";
        refused += fd < 0 && errno == EACCES;
        close(fd);
        if (ptrace(PTRACE_ATTACH, next, NULL, NULL) == 0) {
            int status;
            /* The trap of an exec may come before the stop, which would then remain when it is let go. */
            while (waitpid(next, &status, __WALL) == next && WIFSTOPPED(status) && WSTOPSIG(status) != SIGSTOP)
                ptrace(PTRACE_CONT, next, NULL, NULL);
            if (is_before_exec(next))
                won = "ptrace";
            ptrace(PTRACE_DETACH, next, NULL, NULL);
        } else
            refused += errno == EPERM;
        int pidfd = syscall(SYS_pidfd_open, next, 0);
        for (int number = 0; number < 8; number++) {
            fd = syscall(SYS_pidfd_getfd, pidfd, number, 0);
            if (fd >= 0 && is_before_exec(next))
                won = "pidfd_getfd";
            refused += fd < 0 && errno == EPERM;
            close(fd);
        }
        close(pidfd);
        if (process_vm_readv(next, &ours, 1, &theirs, 1, 0) >= 0) {
            if (is_before_exec(next))
                won = "process_vm_readv";
        } else
            refused += errno == EPERM;
        for (const char **name = (const char *[]){"environ", "fd/0", "fd/3", "exe", "root/rkt", "cwd", NULL}; *name; name++) {
            snprintf(path, sizeof path, "/proc/%d/%s", next, *name);
            fd = open(path, O_RDONLY | O_NONBLOCK);
            if (fd >= 0 && is_before_exec(next))
                won = *name;
            refused += fd < 0 && errno == EACCES;
            close(fd);
        }
        if (won) {
            printf("got in by %s\n", won);
            return 1;
        }
    }
    printf("refused %d times\n", refused);
    return 0;
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(verb, "trace") && argc == 3)
        return trace(atoi(argv[2]));
    if (!strcmp(verb, "exe") && argc == 3)
        return exe(argv[2]);
    if (!strcmp(verb, "swap") && argc == 4)
        return swap(argv[2], argv[3]);
    if (!strcmp(verb, "keys") && argc == 3)
        return keys(argv[2]);
    if (!strcmp(verb, "hunt") && argc == 3)
        return hunt(atoi(argv[2]));
    if (!strcmp(verb, "procs") && argc == 2)
        return nftw("/", look_for_proc, 16, FTW_PHYS | FTW_ACTIONRETVAL);
    fprintf(stderr, "attacker: bad arguments\n");
    return 2;
}
