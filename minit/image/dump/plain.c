/*
 * What the machine of a build decides, and must not decide in a program that is made there.
 *
 * The interpreter reads the directories that it imports from, and asks for the state of files. The order of names decides
 * in which memory they lie, and with them all that follows. So do numbers: those below 257 are objects that exist, and
 * others take memory. So does the time, by the length of a text. Times of files are left as they are: bytecode is compared
 * with them.
 */
#include "dump.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static DIR *listed;
static struct dirent **entries;
static size_t entry_count, next_entry;

static int compare_names(const void *left, const void *right)
{
    return strcmp((*(struct dirent *const *)left)->d_name, (*(struct dirent *const *)right)->d_name);
}

static void list(DIR *directory)
{
    const struct dirent *entry;

    for (entry_count = next_entry = 0; (entry = readdir(directory)); entry_count++) {
        entries = realloc(entries, (entry_count + 1) * sizeof *entries);
        if (!entries || !(entries[entry_count] = malloc(entry->d_reclen)))
            fail("no memory for the names in a directory");
        memcpy(entries[entry_count], entry, entry->d_reclen);
    }
    if (entry_count)
        qsort(entries, entry_count, sizeof *entries, compare_names);
    listed = directory;
}

/* What CPython calls as readdir(3), and goes on to call until there is no more. */
struct dirent *plain_readdir(DIR *directory)
{
    if (is_restored)
        return readdir(directory);
    if (directory != listed)
        list(directory);
    if (next_entry < entry_count)
        return entries[next_entry++];
    while (entry_count)
        free(entries[--entry_count]);
    listed = NULL;
    errno = 0;
    return NULL;
}

static int make_plain(int result, struct stat *state)
{
    if (is_restored || result)
        return result;
    state->st_dev = state->st_ino = state->st_nlink = state->st_blocks = 1;
    state->st_uid = state->st_gid = 0;
    state->st_blksize = 4096;
    if (S_ISDIR(state->st_mode))
        state->st_size = 0;
    return 0;
}

/* The rest is called as stat(2) and its kin. */
int plain_stat(const char *path, struct stat *state)
{
    return make_plain(stat(path, state), state);
}

int plain_lstat(const char *path, struct stat *state)
{
    return make_plain(lstat(path, state), state);
}

int plain_fstat(int fd, struct stat *state)
{
    return make_plain(fstat(fd, state), state);
}

int plain_fstatat(int directory, const char *path, struct stat *state, int flags)
{
    return make_plain(fstatat(directory, path, state, flags), state);
}

int plain_clock_gettime(clockid_t clock, struct timespec *now)
{
    if (is_restored || clock != CLOCK_REALTIME)
        return clock_gettime(clock, now);
    *now = (struct timespec){.tv_sec = 1000000000, .tv_nsec = 123456789};
    return 0;
}
