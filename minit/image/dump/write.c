/*
 * Writes this program anew, as an ELF file, with the arena and the saved variables as they are now.
 *
 * Relies on the linker: the arena is the last segment and has no content in the file, and the section of saved
 * variables lies in one segment, with content. Everything else of the file is copied as it is, but for the section
 * headers, which would no longer be true. A program that can run another in its place has a number at its end, by which
 * guard.c knows that all of it is there. After that is the sum of all before, for crash.c.
 */
#include "dump.h"
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static void put(int fd, const char *path, const void *data, size_t size, off_t offset)
{
    ssize_t written;

    for (; size; data = (const char *)data + written, size -= written, offset += written) {
        written = pwrite(fd, data, size, offset);
        if (written < 0)
            fail("cannot write %s: %s", path, strerror(errno));
    }
}

static off_t copy_this_program(int fd, const char *path)
{
    char buffer[1 << 16];
    off_t offset = 0;
    ssize_t length;
    int self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);

    if (self < 0)
        fail("cannot open /proc/self/exe: %s", strerror(errno));
    for (; (length = read(self, buffer, sizeof buffer)) > 0; offset += length)
        put(fd, path, buffer, length, offset);
    if (length < 0)
        fail("cannot read /proc/self/exe: %s", strerror(errno));
    close(self);
    return offset;
}

void write_program(const char *path)
{
    extern const Elf64_Ehdr __ehdr_start;
    Elf64_Ehdr header = __ehdr_start;
    Elf64_Phdr segments[header.e_phnum];
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0755), found = 0;
    off_t end, guard = 0;
    long whole = 0;
    unsigned long sum;

    if (fd < 0)
        fail("cannot create %s: %s", path, strerror(errno));
    memcpy(segments, (const char *)&__ehdr_start + header.e_phoff, sizeof segments);
    end = (copy_this_program(fd, path) + PAGE - 1) & -PAGE;
    for (int i = 0; i < header.e_phnum; i++) {
        Elf64_Phdr *segment = &segments[i];
        char *start = (char *)segment->p_vaddr;
        if (segment->p_type != PT_LOAD)
            continue;
        if (start <= (const char *)&guarded_end && (const char *)&guarded_end < start + segment->p_filesz)
            guard = segment->p_offset + ((const char *)&guarded_end - start);
        if (start == arena) {
            segment->p_offset = end;
            segment->p_memsz = arena_used();
            segment->p_filesz = arena_filled();
            put(fd, path, arena, segment->p_filesz, end);
            whole = end + segment->p_filesz;
            found++;
        } else if (start <= __start_saved && start + segment->p_filesz >= __stop_saved) {
            put(fd, path, __start_saved, __stop_saved - __start_saved, segment->p_offset + (__start_saved - start));
            found++;
        }
    }
    if (found != 2 || !guard)
        fail("the linker has laid this program out in another way than write.c expects");
    if (has_sources())
        put(fd, path, &whole, sizeof whole, guard);
    put(fd, path, &whole, sizeof whole, whole);
    put(fd, path, segments, sizeof segments, header.e_phoff);
    header.e_shoff = 0;
    header.e_shnum = header.e_shstrndx = 0;
    put(fd, path, &header, sizeof header, 0);
    sum = sum_of(fd, whole + sizeof whole);
    put(fd, path, &sum, sizeof sum, whole + sizeof whole);
    if (close(fd) < 0)
        fail("cannot write %s: %s", path, strerror(errno));
}
