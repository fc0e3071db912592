/*
 * An app that tells that it is ready by sd_notify(3), and one that abuses the way to tell, linked statically.
 *
 * notifier WORD...   does each in turn, and exits 0
 *   KEY=VALUE        sends that message, with "\n" for "," in it
 *   huge             sends READY=1 in a message of 5000 bytes
 *   barrier          sends BARRIER=1 with the end of a pipe and waits until PID 1 has closed it
 *   linger           sends a socket whose last close waits for an hour, and keeps the other end
 *   crowd            sends six messages of a hundred descriptors, of which the last is such a socket
 *   flood            sends messages of all kinds for 300 ms
 *   fork             goes on in a child; the first process waits for it, deaf
 *   file PATH        makes a file
 *   wait PATH        waits until there is a file
 *   fd N TEXT        writes TEXT to a descriptor, with a line feed for "," in it, and closes it
 *   exit N           exits with N
 *   forever          waits
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MANY 100

static int notify_socket = -1;
static struct sockaddr_un address = {.sun_family = AF_UNIX};

static void fail(const char *what)
{
    perror(what);
    exit(99);
}

static void open_socket(void)
{
    const char *path = getenv("NOTIFY_SOCKET");
    if (notify_socket != -1)
        return;
    if (path == NULL)
        fail("NOTIFY_SOCKET");
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    notify_socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
}

static int send_with_many(const void *data, size_t size, const int *fds, size_t count)
{
    char space[CMSG_SPACE(MANY * sizeof *fds)] = {0};
    struct iovec part = {.iov_base = (void *)data, .iov_len = size};
    struct msghdr message = {.msg_name = &address, .msg_namelen = sizeof address, .msg_iov = &part, .msg_iovlen = 1};
    open_socket();
    if (count > 0) {
        message.msg_control = space;
        message.msg_controllen = CMSG_SPACE(count * sizeof *fds);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(count * sizeof *fds);
        memcpy(CMSG_DATA(header), fds, count * sizeof *fds);
    }
    return sendmsg(notify_socket, &message, MSG_NOSIGNAL) == -1 ? -1 : 0;
}

static int send_with(const void *data, size_t size, int fd)
{
    return send_with_many(data, size, &fd, fd != -1);
}

static char *with_line_feeds(char *text)
{
    for (char *at = text; *at; at++)
        if (*at == ',')
            *at = '\n';
    return text;
}

static void wait_for_barrier(void)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) || send_with("BARRIER=1", 9, ends[1]))
        fail("barrier");
    close(ends[1]);
    struct pollfd poller = {.fd = ends[0]};
    poll(&poller, 1, -1);
    close(ends[0]);
}

static int make_lingering(void)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof here;
    struct linger hour = {.l_onoff = 1, .l_linger = 3600};
    static char block[1 << 16];
    int listener = socket(AF_INET, SOCK_STREAM, 0), ours = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 1)
        || getsockname(listener, (struct sockaddr *)&here, &size)
        || connect(ours, (struct sockaddr *)&here, sizeof here) || accept(listener, NULL, NULL) == -1)
        fail("linger");
    setsockopt(ours, SOL_SOCKET, SO_LINGER, &hour, sizeof hour);
    while (send(ours, block, sizeof block, MSG_DONTWAIT) > 0)
        ;
    return ours;
}

static void send_lingering(void)
{
    int lingering = make_lingering(), ends[2], status;
    char byte;
    open_socket();
    if (pipe(ends))
        fail("pipe");
    /* The supervisor may be the first to close it, and then the last close would wait here. That of a process which
     * ends does not wait: so another one sends it, once this one has closed it. */
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        if (read(ends[0], &byte, 1) != 0)
            _exit(1);
        _exit(send_with("STATUS=lingering", 16, lingering) != 0);
    }
    close(lingering);
    close(ends[0]);
    close(ends[1]);
    if (waitpid(child, &status, 0) != child || status != 0)
        fail("send");
}

static void send_crowds(void)
{
    int fds[MANY], null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int at = 0; at < MANY; at++)
        fds[at] = null;
    for (int round = 0; round < 6; round++) {
        fds[MANY - 1] = make_lingering();
        if (send_with_many("STATUS=crowd", 12, fds, MANY))
            fail("send");
        close(fds[MANY - 1]);
    }
    close(null);
}

static void flood(void)
{
    static char block[5000];
    struct timespec start, now;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        send_with("STATUS=a", 8, -1);
        send_with(block, sizeof block, -1);
        send_with("", 0, null);
        send_with("\n=\n\xff=\xff", 6, null);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 < 300);
    close(null);
}

static void go_on_in_child(void)
{
    pid_t child = fork();
    if (child > 0) {
        int status;
        if (notify_socket != -1)
            close(notify_socket);
        waitpid(child, &status, 0);
        exit(WEXITSTATUS(status));
    }
}

int main(int argc, char **argv)
{
    for (int at = 1; at < argc; at++) {
        char *word = argv[at];
        if (strchr(word, '=') != NULL) {
            with_line_feeds(word);
            if (send_with(word, strlen(word), -1))
                fail(word);
        } else if (!strcmp(word, "huge")) {
            static char block[5000];
            memset(block, '\n', sizeof block);
            memcpy(block, "READY=1", 7);
            if (send_with(block, sizeof block, -1))
                fail(word);
        } else if (!strcmp(word, "barrier")) {
            wait_for_barrier();
        } else if (!strcmp(word, "linger")) {
            send_lingering();
        } else if (!strcmp(word, "crowd")) {
            send_crowds();
        } else if (!strcmp(word, "flood")) {
            flood();
        } else if (!strcmp(word, "fork")) {
            go_on_in_child();
        } else if (!strcmp(word, "file")) {
            close(open(argv[++at], O_WRONLY | O_CREAT, 0644));
        } else if (!strcmp(word, "wait")) {
            for (at++; access(argv[at], F_OK); usleep(10000))
                ;
        } else if (!strcmp(word, "fd")) {
            int fd = atoi(argv[++at]);
            char *text = with_line_feeds(argv[++at]);
            if (write(fd, text, strlen(text)) == -1)
                fail(word);
            close(fd);
        } else if (!strcmp(word, "exit")) {
            return atoi(argv[++at]);
        } else if (!strcmp(word, "forever")) {
            for (;;)
                pause();
        } else {
            fail(word);
        }
    }
    return 0;
}
