/*
 * Programs of a hostile image, linked statically; each does what a shell cannot and says on stdout how far it got.
 *
 * attacker trace PID        attaches to a process, reads its memory, takes one of its descriptors
 * attacker exe FIFO         waits for a program in the pod that is not of the image, holds its file, ends it by FIFO,
 *                           and opens that file for writing
 * attacker swap A B         exchanges two names in their directory, without end
 * attacker keys NAME        looks for a key of that name in its session's keyring, and adds one called "own"
 * attacker procs            looks for procfs in every directory near the top, and what of the machine can be had there
 * attacker hierarchy         tries to mount control groups in every way there is, also in namespaces of its own
 * attacker uncover           tries to write the kernel's settings, by mounts that undo what is read-only
 * attacker slow PID          tries to have a process scheduled after all others, and to have it killed before them
 * attacker limits PID        lowers limits of a process, and asks for them
 * attacker vsock             makes a socket that leads out of a virtual machine
 * attacker frames            makes sockets for frames in which the kernel is to write a checksum
 * attacker userkeys NAME     looks for a key of that name in the keyring of its user
 * attacker pipes             takes all pipes that its user may have, says so, and takes those that others give up
 * attacker starve PID KIND   takes every resource from a process, by prlimit(2): its soft limits or also the hard ones
 * attacker stop FILE         stops whatever comes after it into the pod, again and again, and makes FILE before
 * attacker hunt COUNT       tries to get at what enters the pod, until it was refused COUNT times; says if it ever got in
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/if_packet.h>
#include <linux/keyctl.h>
#include <sched.h>
#include <stdio.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
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

/* Runs an attempt in a process of its own, as it may be fatal, and says how it went. */
static int attempt(const char *what, long (*run)(void))
{
    int status;
    fflush(stdout);
    pid_t pid = fork();
    if (!pid)
        _exit(run() < 0 ? errno : 0);
    waitpid(pid, &status, 0);
    if (WIFSIGNALED(status))
        printf("%s: signal %d\n", what, WTERMSIG(status));
    else
        printf("%s: %s\n", what, WEXITSTATUS(status) ? strerror(WEXITSTATUS(status)) : "done");
    return !WIFSIGNALED(status) && !WEXITSTATUS(status);
}

static unsigned long mount_flags;

/* A hierarchy that is there, or that anybody may make who is root: its release_agent runs on the host. */
static long mount_v1(void)
{
    long result = syscall(SYS_mount, "x", "/tmp", "cgroup", mount_flags, "none,name=attack");
    for (const char **name = (const char *[]){"pids", "memory", "devices", NULL}; result < 0 && *name; name++)
        result = syscall(SYS_mount, "x", "/tmp", "cgroup", mount_flags, *name);
    return result;
}

#ifdef __x86_64__
/* As a program of 32 bits calls it, whose strings have to be where such a program could have them. */
static long mount_by_i386(void)
{
    char *low = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    long result;
    strcpy(low, "/tmp");
    strcpy(low + 16, "cgroup");
    strcpy(low + 32, "none,name=attack");
    __asm__ volatile("int $0x80"
                     : "=a"(result)
                     : "a"(21L), "b"(low), "c"(low), "d"(low + 16), "S"(mount_flags), "D"(low + 32)
                     : "memory", "r8", "r9", "r10", "r11");
    errno = result < 0 ? -result : 0;
    return result < 0 ? -1 : result;
}
#endif

static long mount_v2(void)
{
    return syscall(SYS_mount, "x", "/tmp", "cgroup2", mount_flags, NULL);
}

static long open_filesystem(void)
{
    int fd = syscall(SYS_fsopen, "cgroup2", 0);
    if (fd < 0)
        return fd;
    if (syscall(SYS_fsconfig, fd, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return -1;
    return syscall(SYS_fsmount, fd, 0, 0);
}

static long make_namespaces(void)
{
    return unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWCGROUP);
}

static long clone_namespaces(void)
{
    pid_t pid = syscall(SYS_clone, CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWCGROUP | SIGCHLD, NULL, NULL, NULL, NULL);
    if (!pid)
        _exit(0);
    return pid;
}

static int try_hierarchies(const char *where)
{
    char what[64];
    int got = 0;
    for (const unsigned long *flags = (const unsigned long[]){0, 0xc0ed0000, 1}; ; flags++) {
        mount_flags = *flags;
        snprintf(what, sizeof what, "%s v1 %lx", where, mount_flags);
        got |= attempt(what, mount_v1);
        snprintf(what, sizeof what, "%s v2 %lx", where, mount_flags);
        got |= attempt(what, mount_v2);
#ifdef __x86_64__
        snprintf(what, sizeof what, "%s i386 %lx", where, mount_flags);
        got |= attempt(what, mount_by_i386);
#endif
        if (*flags == 1)
            break;
    }
    snprintf(what, sizeof what, "%s fsopen", where);
    return got | attempt(what, open_filesystem);
}

static int hierarchy(void)
{
    int got = try_hierarchies("here");
    attempt("clone", clone_namespaces);
    if (attempt("unshare", make_namespaces) && !make_namespaces())
        got |= try_hierarchies("there");
    puts(got ? "got a hierarchy" : "got nothing");
    return 0;
}

static pid_t slowed;

static long make_idle(void)
{
    struct sched_param none = {0};
    return sched_setscheduler(slowed, SCHED_IDLE, &none);
}

static long make_nice(void)
{
    return setpriority(PRIO_PROCESS, slowed, 19);
}

static long bind_to_one(void)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    return sched_setaffinity(slowed, sizeof one, &one);
}

static long make_io_idle(void)
{
    return syscall(SYS_ioprio_set, 1 /* IOPRIO_WHO_PROCESS */, slowed, 3 << 13 /* IOPRIO_CLASS_IDLE */);
}

static long choose_victim(void)
{
    static const char *names[] = {"oom_score_adj", "oom_adj", "task/%d/oom_score_adj", NULL};
    for (const char **name = names; *name; name++) {
        char path[64], file[32];
        snprintf(file, sizeof file, *name, slowed);
        snprintf(path, sizeof path, "/proc/%d/%s", slowed, file);
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        if (fd >= 0 && write(fd, "15", 2) == 2)
            return 0;
    }
    return -1;
}

static int slow(pid_t pid)
{
    slowed = pid;
    return attempt("idle", make_idle) | attempt("nice", make_nice) | attempt("affinity", bind_to_one)
        | attempt("io", make_io_idle) | attempt("victim", choose_victim);
}

static int is_uncovered(const char *path)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    close(fd);
    return 1;
}

#define SETTING "sys/kernel/core_pattern"

/* The settings are read-only by a mount on /proc/sys, which a bind of /proc leaves out. */
static int try_uncovering(void)
{
    struct { unsigned long long set, clear, propagation, userns; } writable = {0, 1, 0, 0};
    int got = 0;
    say("bind", mount("/proc", "/tmp", NULL, MS_BIND, NULL));
    got |= is_uncovered("/tmp/" SETTING);
    say("recursive bind", mount("/proc", "/tmp", NULL, MS_BIND | MS_REC, NULL));
    say("unmount in the bind", umount2("/tmp/sys", MNT_DETACH));
    got |= is_uncovered("/tmp/" SETTING);
    int tree = syscall(SYS_open_tree, AT_FDCWD, "/proc", 1 /* OPEN_TREE_CLONE */);
    say("open_tree", tree);
    int fd = tree < 0 ? -1 : openat(tree, SETTING, O_WRONLY | O_CLOEXEC);
    got |= fd >= 0;
    say("mount_setattr", syscall(SYS_mount_setattr, AT_FDCWD, "/proc/sys", 0, &writable, sizeof writable));
    got |= is_uncovered("/proc/" SETTING);
    say("remount", mount(NULL, "/proc/sys", NULL, MS_REMOUNT | MS_BIND, NULL));
    got |= is_uncovered("/proc/" SETTING);
    say("move", mount("/proc/sys", "/tmp", NULL, MS_MOVE, NULL));
    got |= is_uncovered("/proc/" SETTING);
    say("unmount", umount2("/proc/sys", MNT_DETACH));
    got |= is_uncovered("/proc/" SETTING);
    return got;
}

static int uncover(void)
{
    int got = try_uncovering();
    if (attempt("unshare", make_namespaces) && !make_namespaces())
        got |= try_uncovering();
    puts(got ? "uncovered" : "covered");
    return 0;
}

static pid_t victim;

static long lower_limit(void)
{
    struct rlimit none = {1, 1};
    return prlimit(victim, RLIMIT_NOFILE, &none, NULL);
}

static long ask_limit(void)
{
    struct rlimit found;
    return prlimit(victim, RLIMIT_NOFILE, NULL, &found);
}

static int limits(pid_t pid)
{
    victim = pid;
    attempt("lower", lower_limit);
    attempt("ask", ask_limit);
    return 0;
}

static long make_vsock(void)
{
    return socket(AF_VSOCK, SOCK_STREAM, 0);
}

static long ask_for_headers(void)
{
    int fd = socket(AF_PACKET, SOCK_RAW, 0), on = 1;
    return fd < 0 ? -1 : setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on);
}

static long make_xdp(void)
{
    return socket(AF_XDP, SOCK_RAW, 0);
}

static const char *wanted;

static long find_key(void)
{
    return syscall(SYS_keyctl, KEYCTL_SEARCH, KEY_SPEC_USER_KEYRING, "user", wanted, 0);
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

static int take_pipes(void)
{
    int ends[2], size, page = getpagesize(), told = 0;

    for (;;) {
        if (pipe(ends)) {
            perror("pipe");
            return 1;
        }
        for (size = 1 << 20; size > 2 * page && fcntl(ends[0], F_SETPIPE_SZ, size) < 0; size /= 2)
            ;
        if (size > 2 * page)
            continue;
        close(ends[0]);
        close(ends[1]);
        if (!told++)
            puts("taken");
        usleep(1000);
    }
}

static int starve(pid_t pid, const char *kind)
{
    struct rlimit limits;

    for (int resource = 0; resource < RLIM_NLIMITS; resource++) {
        prlimit(pid, resource, NULL, &limits);
        limits.rlim_cur = 0;
        if (!strcmp(kind, "hard"))
            limits.rlim_max = 0;
        if (resource != RLIMIT_CPU)  // of which it may have had too much already
            say("prlimit", prlimit(pid, resource, &limits, NULL));
    }
    return 0;
}

static _Noreturn void stop(const char *path)
{
    close(open(path, O_CREAT | O_WRONLY, 0600));
    for (;;)
        for (pid_t pid = getpid() + 1; pid < getpid() + 100; pid++)
            kill(pid, SIGSTOP);
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
    if (!strcmp(verb, "hierarchy") && argc == 2)
        return hierarchy();
    if (!strcmp(verb, "uncover") && argc == 2)
        return uncover();
    if (!strcmp(verb, "slow") && argc == 3)
        return slow(atoi(argv[2]));
    if (!strcmp(verb, "limits") && argc == 3)
        return limits(atoi(argv[2]));
    if (!strcmp(verb, "vsock") && argc == 2)
        return !attempt("vsock", make_vsock);
    if (!strcmp(verb, "frames") && argc == 2) {
        attempt("headers", ask_for_headers);
        attempt("xdp", make_xdp);
        return 0;
    }
    if (!strcmp(verb, "userkeys") && argc == 3) {
        wanted = argv[2];
        return !attempt("key", find_key);
    }
    if (!strcmp(verb, "starve") && argc == 4)
        return starve(atoi(argv[2]), argv[3]);
    if (!strcmp(verb, "stop") && argc == 3)
        stop(argv[2]);
    if (!strcmp(verb, "hunt") && argc == 3)
        return hunt(atoi(argv[2]));
    if (!strcmp(verb, "pipes") && argc == 2)
        return take_pipes();
    if (!strcmp(verb, "procs") && argc == 2)
        return nftw("/", look_for_proc, 16, FTW_PHYS | FTW_ACTIONRETVAL);
    fprintf(stderr, "attacker: bad arguments\n");
    return 2;
}
