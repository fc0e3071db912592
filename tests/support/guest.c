/*
 * What the tests run as an app, linked statically so that it needs nothing from its image.
 *
 * guest report FILE          writes what the process sees of itself, a line "key hex" each, and exits 0
 * guest meet COUNT exit N    waits, deaf to SIGTERM, until COUNT apps of the pod wait; exits with N
 * guest meet COUNT die N     the same, and then dies of signal N
 * guest orphans COUNT SIZE   makes COUNT orphans that end in bursts of SIZE, then exits 7
 * guest stubborn FILE        makes FILE, then ignores SIGTERM for good
 * guest breeder FILE         makes FILE; on SIGTERM forks a child that ignores SIGTERM, and exits 0
 * guest bomb FILE            makes FILE, then ignores SIGTERM and forks without end, as do its children
 * guest traced FILE          has a child that ignores SIGTERM stop it by ptrace(2) and make FILE, for good
 * guest trace PID            stops a process by ptrace(2), writes "T" and waits for nothing, for good
 * guest adopted FILE         exits 0; a subreaper with a child is left, writes both pids to FILE and reaps the child
 * guest packets COUNT        writes COUNT unfinished two-byte packets, each into a slot of its own, then "\ncd\n"
 * guest inject TEXT          types TEXT into every terminal it can find, by TIOCSTI, and exits 0
 * guest hangup PATH          hangs up its terminal as login programs do, opens PATH again and writes "again" there
 * guest call CALL             makes a system call, WAY:NUMBER:ARGUMENT..., by way of native, i386 or x32; exits with errno
 * guest calls FILE CALL...    reports to FILE; makes each of the calls in a child; a line "errno N" or "signal N" for each
 * guest threads COUNT         makes COUNT threads and waits for them, exits 0
 * guest escape                breaks out of a chroot as root can, and lists what is at the top
 * guest echo ADDRESS         sends an ICMP echo request without a raw socket, and exits 0 if it is answered
 * guest may FILE              exits 0 if it may read FILE, which it does not open: the kernel would make a device for that
 * guest answer FILE COUNT    reports to FILE; answers COUNT clients, the next on any of its LISTEN_FDS, with its name
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void put(FILE *file, const char *key, const void *data, size_t size)
{
    fprintf(file, "%s ", key);
    for (size_t i = 0; i < size; i++)
        fprintf(file, "%02x", ((const unsigned char *)data)[i]);
    fputc('\n', file);
}

static void put_format(FILE *file, const char *key, const char *format, ...)
{
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    put(file, key, text, strlen(text));
}

static void put_file(FILE *file, const char *key, const char *path)
{
    char data[16384];
    int fd = open(path, O_RDONLY);
    ssize_t size = fd < 0 ? 0 : read(fd, data, sizeof data);
    close(fd);
    put(file, key, data, size < 0 ? 0 : size);
}

static int report(const char *path, int argc, char **argv)
{
    int open_fds[1024], count = 0;
    uid_t ruid, euid, suid;
    gid_t rgid, egid, sgid, groups[64];
    char cwd[4096], link[4096], name[64];

    for (int fd = 0; fd < 1024; fd++)
        if (fcntl(fd, F_GETFD) != -1)
            open_fds[count++] = fd;
    FILE *file = fopen(path, "w");
    if (!file)
        return 1;
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "/proc/self/fd/%d", open_fds[i]);
        ssize_t size = readlink(name, link, sizeof link - 1);
        link[size < 0 ? 0 : size] = 0;
        put_format(file, "fd", "%d %d %s", open_fds[i], fcntl(open_fds[i], F_GETFL), link);
    }
    for (int i = 0; i < argc; i++)
        put(file, "arg", argv[i], strlen(argv[i]));
    for (char **entry = environ; *entry; entry++)
        put(file, "env", *entry, strlen(*entry));
    getresuid(&ruid, &euid, &suid);
    getresgid(&rgid, &egid, &sgid);
    put_format(file, "uids", "%d %d %d", ruid, euid, suid);
    put_format(file, "gids", "%d %d %d", rgid, egid, sgid);
    int group_count = getgroups(64, groups);
    for (int i = 0; i < group_count; i++)
        put_format(file, "group", "%d", groups[i]);
    put_format(file, "cwd", "%s", getcwd(cwd, sizeof cwd));
    put_format(file, "pid", "%d", getpid());
    put_format(file, "sid", "%d", getsid(0));
    put_file(file, "status", "/proc/self/status");
    put_file(file, "oom_score_adj", "/proc/self/oom_score_adj");
    put_file(file, "cgroup", "/proc/self/cgroup");
    put_file(file, "mountinfo", "/proc/self/mountinfo");
    put_file(file, "limits", "/proc/self/limits");
    fclose(file);
    return 0;
}

static int entries(const char *path)
{
    DIR *directory = opendir(path);
    int count = 0;
    while (readdir(directory))
        count++;
    closedir(directory);
    return count - 2;
}

static int meet(int count, const char *verb, int number)
{
    char path[256];
    signal(SIGTERM, SIG_IGN);
    snprintf(path, sizeof path, "/dev/shm/%s", getenv("AC_APP_NAME"));
    close(open(path, O_CREAT | O_WRONLY, 0600));
    while (entries("/dev/shm") < count)
        usleep(1000);
    if (!strcmp(verb, "exit"))
        _exit(number);
    signal(number, SIG_DFL);
    syscall(SYS_kill, getpid(), number);
    for (;;)
        pause();
}

static int orphans(int count, int size)
{
    while (count > 0) {
        int ends[2], burst = count < size ? count : size;
        char byte;
        if (pipe(ends))
            return 1;
        pid_t parent = fork();
        if (parent == 0) {
            /* The grandchildren end when the last writer, their parent, is gone: all at once and as orphans. */
            for (int i = 0; i < burst; i++)
                if (fork() == 0) {
                    close(ends[1]);
                    _exit(read(ends[0], &byte, 1) == 0 ? i % 256 : 255);
                }
            _exit(0);
        }
        close(ends[0]);
        close(ends[1]);
        if (parent < 0)
            return 1;
        waitpid(parent, NULL, 0);
        count -= burst;
    }
    return 7;
}

static void make(const char *path)
{
    close(open(path, O_CREAT | O_WRONLY, 0666));
}

static void breed(int number)
{
    (void)number;
    if (fork() == 0) {
        signal(SIGTERM, SIG_IGN);
        for (;;)
            pause();
    }
    _exit(0);
}

static void bomb(const char *path)
{
    signal(SIGTERM, SIG_IGN);
    signal(SIGCHLD, SIG_IGN);
    make(path);
    for (;;)
        if (fork() < 0)
            usleep(1000);
}

static int trace(pid_t pid)
{
    if (ptrace(PTRACE_ATTACH, pid, NULL, NULL) || waitpid(pid, NULL, __WALL) != pid || write(1, "T", 1) != 1)
        return 1;
    for (;;)
        pause();
}

static void traced(const char *path)
{
    pid_t parent = getpid();
    if (fork() == 0) {
        signal(SIGTERM, SIG_IGN);
        if (ptrace(PTRACE_ATTACH, parent, NULL, NULL) || waitpid(parent, NULL, __WALL) != parent)
            _exit(1);
        make(path);
    }
    for (;;)
        pause();
}

static int adopted(const char *path)
{
    char temporary[4096];

    /* Before it is left, since what is left is told to end. */
    signal(SIGTERM, SIG_IGN);
    pid_t reaper = fork();
    if (reaper != 0)
        return reaper < 0;
    close(1);
    close(2);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t child = fork();
    if (child == 0)
        for (;;)
            pause();
    snprintf(temporary, sizeof temporary, "%s.new", path);
    FILE *file = fopen(temporary, "w");
    fprintf(file, "%d %d\n", getpid(), child);
    fclose(file);
    rename(temporary, path);
    for (;;)
        wait(NULL);
}

static int packets(int count)
{
    fcntl(1, F_SETFL, fcntl(1, F_GETFL) | O_DIRECT);
    while (count--)
        if (write(1, "ab", 2) != 2)
            return 1;
    return write(1, "\ncd\n", 4) != 4;
}

static int inject(const char *text)
{
    static const char *paths[] = {"/dev/tty", "/dev/console", "/proc/1/fd/0", "/proc/1/fd/1", "/proc/1/fd/2"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        int fd = open(paths[i], O_RDWR | O_NOCTTY);
        for (const char *byte = text; *byte; byte++)
            ioctl(fd, TIOCSTI, byte);
    }
    return 0;
}

static int hangup(const char *path)
{
    signal(SIGHUP, SIG_IGN);
    if (vhangup())
        return 3;
    if (write(1, "lost", 4) != -1)
        return 4;
    for (int fd = 0; fd < 3; fd++)
        close(fd);
    /* Long enough for whoever has the master to have seen it. */
    usleep(200000);
    int fd = open(path, O_RDWR);
    if (fd < 0)
        return 5;
    return write(fd, "again\n", 6) == 6 ? 0 : 6;
}

static int escape(void)
{
    struct dirent *entry;
    int here = open("/", O_RDONLY | O_DIRECTORY);

    /* A root directory below the working directory no longer stops "..". */
    mkdir("/tmp/cell", 0755);
    if (chroot("/tmp/cell") || fchdir(here))
        return 1;
    for (int i = 0; i < 64; i++)
        if (chdir(".."))
            return 1;
    if (chroot("."))
        return 1;
    DIR *top = opendir("/");
    while ((entry = readdir(top)))
        puts(entry->d_name);
    return 0;
}

static int answer(int count)
{
    const char *fds = getenv("LISTEN_FDS"), *pid = getenv("LISTEN_PID");
    struct pollfd sockets[64];
    int number = fds && pid && atoi(pid) == getpid() ? atoi(fds) : 0;
    char line[512];

    for (int i = 0; i < number; i++)
        sockets[i] = (struct pollfd){.fd = 3 + i, .events = POLLIN};
    while (number && count) {
        if (poll(sockets, number, -1) < 0)
            return 1;
        for (int i = 0; i < number; i++) {
            struct sockaddr_storage peer;
            socklen_t size = sizeof peer;
            int type;
            if (!sockets[i].revents)
                continue;
            snprintf(line, sizeof line, "%s %d", getenv("AC_APP_NAME"), sockets[i].fd);
            getsockopt(sockets[i].fd, SOL_SOCKET, SO_TYPE, &type, &(socklen_t){sizeof type});
            if (type == SOCK_DGRAM) {
                recvfrom(sockets[i].fd, &(char){0}, 1, 0, (void *)&peer, &size);
                sendto(sockets[i].fd, line, strlen(line), 0, (void *)&peer, size);
            } else {
                int client = accept(sockets[i].fd, NULL, NULL);
                if (write(client, line, strlen(line)) < 0)
                    return 1;
                close(client);
            }
            count--;
        }
    }
    return number ? 0 : 2;
}

static int call(const char *text)
{
    long values[7] = {0}, result;
    const char *rest = strchr(text, ':');
    for (int i = 0; rest && i < 7; i++, rest = strchr(rest + 1, ':'))
        values[i] = strtol(rest + 1, NULL, 0);
    if (!strncmp(text, "i386:", 5)) {
#ifdef __x86_64__
        int narrow;
        __asm__ volatile("int $0x80"
                         : "=a"(narrow)
                         : "a"((int)values[0]), "b"(values[1]), "c"(values[2]), "d"(values[3])
                         : "memory", "r8", "r9", "r10", "r11");
        return narrow < 0 ? -narrow : 0;
#else
        return 255;
#endif
    }
    if (!strncmp(text, "x32:", 4))
        values[0] |= 0x40000000;
    result = syscall(values[0], values[1], values[2], values[3], values[4], values[5], values[6]);
    return result == -1 ? errno : 0;
}

static int calls(int count, char **texts)
{
    for (int i = 0; i < count; i++) {
        int status;
        pid_t child = fork();
        if (child == 0)
            _exit(call(texts[i]));
        if (child < 0 || waitpid(child, &status, 0) != child)
            return 1;
        if (WIFSIGNALED(status))
            printf("signal %d\n", WTERMSIG(status));
        else
            printf("errno %d\n", WEXITSTATUS(status));
    }
    return 0;
}

static void *idle(void *argument)
{
    return argument;
}

static int threads(int count)
{
    while (count--) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, idle, NULL) || pthread_join(thread, NULL))
            return 1;
    }
    return 0;
}

static int echo(const char *address)
{
    struct icmphdr request = {.type = ICMP_ECHO, .un.echo.sequence = htons(1)}, reply;
    struct sockaddr_in to = {.sin_family = AF_INET};
    struct timeval patience = {.tv_sec = 5};
    int fd = socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP);
    inet_pton(AF_INET, address, &to.sin_addr);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (sendto(fd, &request, sizeof request, 0, (struct sockaddr *)&to, sizeof to) != sizeof request)
        return 1;
    return recv(fd, &reply, sizeof reply, 0) != sizeof reply || reply.type != ICMP_ECHOREPLY;
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    if (!strcmp(verb, "report") && argc > 2)
        return report(argv[2], argc, argv);
    if (!strcmp(verb, "answer") && argc == 4)
        return report(argv[2], argc, argv) || answer(atoi(argv[3]));
    if (!strcmp(verb, "meet") && argc == 5)
        return meet(atoi(argv[2]), argv[3], atoi(argv[4]));
    if (!strcmp(verb, "orphans") && argc == 4)
        return orphans(atoi(argv[2]), atoi(argv[3]));
    if (!strcmp(verb, "packets") && argc == 3)
        return packets(atoi(argv[2]));
    if (!strcmp(verb, "inject") && argc == 3)
        return inject(argv[2]);
    if (!strcmp(verb, "hangup") && argc == 3)
        return hangup(argv[2]);
    if (!strcmp(verb, "call") && argc == 3)
        return call(argv[2]);
    if (!strcmp(verb, "calls") && argc > 2)
        return report(argv[2], argc, argv) || calls(argc - 3, argv + 3);
    if (!strcmp(verb, "threads") && argc == 3)
        return threads(atoi(argv[2]));
    if (!strcmp(verb, "echo") && argc == 3)
        return echo(argv[2]);
    if (!strcmp(verb, "may") && argc == 3)
        return access(argv[2], R_OK) != 0;
    if (!strcmp(verb, "escape") && argc == 2)
        return escape();
    if (!strcmp(verb, "stubborn") && argc == 3) {
        signal(SIGTERM, SIG_IGN);
        make(argv[2]);
        for (;;)
            pause();
    }
    if (!strcmp(verb, "breeder") && argc == 3) {
        signal(SIGTERM, breed);
        make(argv[2]);
        for (;;)
            pause();
    }
    if (!strcmp(verb, "bomb") && argc == 3)
        bomb(argv[2]);
    if (!strcmp(verb, "traced") && argc == 3)
        traced(argv[2]);
    if (!strcmp(verb, "trace") && argc == 3)
        return trace(atoi(argv[2]));
    if (!strcmp(verb, "adopted") && argc == 3)
        return adopted(argv[2]);
    fprintf(stderr, "guest: bad arguments\n");
    return 2;
}
