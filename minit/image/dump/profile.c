/*
 * Which blocks of the arena are written to while a program runs: found out by a program that is dumped for that alone,
 * and used when another one is dumped of the same modules.
 *
 * A directory has the files of both (program.py). The first dumper leaves `numbers` there, the number of the block that
 * each granule of the arena belongs to. In its program no page of the arena can be written to: the handler of the fault
 * notes the place, opens the page, and has the processor stop after one instruction, whereupon the page is closed
 * again. So each write is seen, also one that leaves the memory as it was, as counting an object does. `written` has a
 * byte for each granule, and all processes of the program note there. The second dumper reads `hot`.
 */
#include "dump.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>

#define OPEN_PAGES 4 /* more than one instruction writes to */
#define ENOUGH 24    /* writes to a page, none of them to a new place, after which it stays open */
#define TRAP_FLAG 0x100

static SAVED char trace[PATH_MAX]; /* the path of `written`, empty in a program that is not to be traced */
static unsigned *numbers;

static int open_in(const char *directory, const char *name, int flags)
{
    char path[PATH_MAX];

    if (snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path)
        fail("%s is too long", directory);
    return open(path, flags | O_CLOEXEC, 0600);
}

/* To be called before there is a block. Without `hot` the directory is to become a profile; an empty path is none. */
void use_profile(const char *directory)
{
    struct stat status;
    size_t *hot;
    int fd;

    if (!*directory)
        return;
    fd = open_in(directory, "hot", O_RDONLY);
    if (fd >= 0) {
        if (fstat(fd, &status) < 0 || (size_t)status.st_size < HOT_PLACES * sizeof *hot ||
            (hot = mmap(NULL, status.st_size, PROT_READ, MAP_PRIVATE, fd, 0)) == MAP_FAILED)
            fail("cannot read which blocks are hot: %s", strerror(errno));
        close(fd);
        arena_separate((char *)(hot + HOT_PLACES), status.st_size - HOT_PLACES * sizeof *hot, hot);
    } else {
        if (snprintf(trace, sizeof trace, "%s/written", directory) >= (int)sizeof trace)
            fail("%s is too long", directory);
        numbers = mmap(NULL, ARENA_BYTES / GRANULE * sizeof *numbers, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (numbers == MAP_FAILED)
            fail("no memory for the numbers of blocks");
        arena_number(numbers);
    }
}

void finish_profile(const char *directory)
{
    ssize_t size = arena_used() / GRANULE * sizeof *numbers;
    int fd;

    if (!numbers)
        return;
    fd = open_in(directory, "numbers", O_WRONLY | O_CREAT | O_EXCL);
    if (fd < 0 || write(fd, numbers, size) != size || close(fd) < 0)
        fail("cannot write the numbers of blocks: %s", strerror(errno));
}

#ifdef __x86_64__
static char *written;
static unsigned char *known_writes; /* for each page those since the last one to a new place */
static char *opened[OPEN_PAGES];
static int opened_count;

static void on_write(int number, siginfo_t *info, void *context)
{
    size_t at = (char *)info->si_addr - arena;
    char *page = arena + (at & -PAGE);
    unsigned char *known = &known_writes[at / PAGE];

    if (at >= arena_used() || opened_count == OPEN_PAGES) {
        PyOS_setsig(number, SIG_DFL);
        return;
    }
    *known = written[at / GRANULE] ? *known + 1 : 0;
    written[at / GRANULE] = 1;
    mprotect(page, PAGE, PROT_READ | PROT_WRITE);
    if (*known < ENOUGH) {
        opened[opened_count++] = page;
        ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
    }
}

static void on_step(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info;
    while (opened_count)
        mprotect(opened[--opened_count], PAGE, PROT_READ);
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
}

static void *new_memory(size_t size, int flags, int fd)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, fd, 0);

    if (memory == MAP_FAILED)
        fail("no memory for the trace of writes");
    return memory;
}

/* To be called before the code of loaded objects, which is in the arena too, is made executable. */
void watch_writes(void)
{
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    stack_t stack = {.ss_size = 1 << 16};
    size_t granules = arena_used() / GRANULE;
    int fd;

    /* Where nobody has made the file, nobody asks. */
    if (!*trace || access(trace, F_OK) < 0)
        return;
    fd = open(trace, O_RDWR | O_CLOEXEC);
    if (fd < 0 || ftruncate(fd, granules) < 0)
        fail("cannot write %s: %s", trace, strerror(errno));
    written = new_memory(granules, MAP_SHARED, fd);
    close(fd);
    known_writes = new_memory(arena_used() / PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    stack.ss_sp = new_memory(stack.ss_size, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    sigaltstack(&stack, NULL);
    action.sa_sigaction = on_write;
    sigaction(SIGSEGV, &action, NULL);
    action.sa_sigaction = on_step;
    sigaction(SIGTRAP, &action, NULL);
    mprotect(arena, arena_used(), PROT_READ);
}
#else
/* Other processors have a program stop after an instruction only for a debugger. */
void watch_writes(void)
{
    if (*trace && access(trace, F_OK) == 0)
        fail("writes are not traced on this processor");
}
#endif
