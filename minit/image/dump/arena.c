/*
 * The memory of the interpreter while it imports, at a fixed address.
 *
 * Every call that CPython and its extension modules make of malloc(3) and mmap(2) ends here, by the names that
 * program.py gives to the symbols of their object files. Once restored, the program gets its memory from the C library,
 * and what lies in the arena is never given back.
 *
 * CPython must have been told to take each object from malloc (PYMEM_ALLOCATOR_MALLOC): its own allocator leaves what
 * is free as it was. Here, a free block is zero, so that the program is the same for the same modules, and has nothing
 * in it that the interpreter has let go.
 */
#include "dump.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define HEADER sizeof(size_t)
#define SMALL_MAX 1024
#define BINS 256

/* Without content, so that the file of the program that is not dumped yet is small. */
__asm__(".section arena_memory, \"aw\", @nobits\n"
        ".balign 4096\n"
        ".globl arena\narena: .space 128 << 20\n"
        ".previous\n");

static SAVED char *next_free = arena;

/*
 * Of the blocks that a dump has some are written to while it runs, to count the objects in them. If it is known which
 * (profile.c), they lie together, at the start of the arena, so that fewer pages have to be copied: first those of the
 * program that runs most often at once. A block is known by its number: an interpreter that does the same takes the
 * same blocks in the same order.
 */
static unsigned blocks_taken;
static const char *places;
static size_t places_count;
static struct {
    char *next, *end;
} hot[HOT_PLACES];
static unsigned *block_numbers;

struct block {
    struct block *next;
};
static struct block *free_blocks[BINS];

/* The used end, not the arena's: the heap of a restored program may begin between the two, brk(2). */
static int is_in_arena(const void *address)
{
    return (const char *)address >= arena && (const char *)address < next_free;
}

size_t arena_used(void)
{
    return (next_free - arena + PAGE - 1) & -PAGE;
}

/* Returns the bytes up to the last page that has anything in it. */
size_t arena_filled(void)
{
    size_t size = arena_used();

    while (size && !arena[size - PAGE] && !memcmp(arena + size - PAGE, arena + size - PAGE + 1, PAGE - 1))
        size -= PAGE;
    return size;
}

static char *align(char *place, size_t header, size_t alignment)
{
    return (char *)(((unsigned long)place + header + alignment - 1) & -alignment);
}

/* Returns `size` bytes behind `header` ones, at a multiple of `alignment`. */
static void *take(size_t header, size_t size, size_t alignment)
{
    char *start = align(next_free, header, alignment);

    if (size > (size_t)(arena + ARENA_BYTES - start))
        fail("%zu bytes more than the arena of %lu has", size, ARENA_BYTES);
    next_free = start + size;
    return start;
}

/* Returns a block for what is written to; NULL if the one that is taken now is not. */
static void *take_hot(size_t size)
{
    int place = blocks_taken < places_count ? places[blocks_taken] : 0;
    char *start;

    if (!place)
        return NULL;
    start = align(hot[place - 1].next, HEADER, GRANULE);
    if (start + size > hot[place - 1].end)
        return NULL;
    hot[place - 1].next = start + size;
    return start;
}

void *arena_pages(size_t size)
{
    return take(0, (size + PAGE - 1) & -PAGE, PAGE);
}

/* Sizes of blocks with their headers are multiples of 16, and from 1024 on four for each power of two. */
static size_t step_of(size_t size)
{
    return size < SMALL_MAX ? GRANULE : 1UL << (8 * sizeof size - 3 - __builtin_clzl(size));
}

static size_t round_up(size_t size)
{
    size_t step = step_of(size);
    return (size + step - 1) & -step;
}

static unsigned bin_of(size_t size)
{
    unsigned power = 8 * sizeof size - 1 - __builtin_clzl(size);
    return size < SMALL_MAX ? size / GRANULE : SMALL_MAX / GRANULE + 4 * (power - 10) + size / step_of(size) - 4;
}

static size_t *header_of(void *block)
{
    return (size_t *)block - 1;
}

static void put(void *block)
{
    unsigned bin = bin_of(*header_of(block));

    ((struct block *)block)->next = free_blocks[bin];
    free_blocks[bin] = block;
}

/* Takes a free block of this size, or cuts it off a larger one, whose rest becomes other blocks. */
static void *reuse(size_t size)
{
    struct block *block;
    size_t whole, part;
    char *rest;
    unsigned bin = bin_of(size);

    while (bin < BINS && !free_blocks[bin])
        bin++;
    if (bin == BINS)
        return NULL;
    block = free_blocks[bin];
    free_blocks[bin] = block->next;
    block->next = NULL;
    whole = *header_of(block);
    *header_of(block) = size;
    for (rest = (char *)block + size, whole -= size; whole > 0; rest += part, whole -= part) {
        part = whole & -step_of(whole);
        *header_of(rest) = part;
        put(rest);
    }
    return block;
}

void *arena_malloc(size_t size)
{
    void *block;

    if (is_restored)
        return malloc(size);
    if (size > ARENA_BYTES)
        return errno = ENOMEM, NULL;
    size = round_up(size + HEADER + (size == 0));
    block = take_hot(size - HEADER);
    if (!block)
        block = reuse(size);
    if (!block)
        block = take(HEADER, size - HEADER, GRANULE);
    *header_of(block) = size;
    blocks_taken++;
    if (block_numbers)
        for (char *at = (char *)block - HEADER; size; at += GRANULE, size -= GRANULE)
            block_numbers[(at - arena) / GRANULE] = blocks_taken;
    return block;
}

void arena_free(void *block)
{
    if (!block)
        return;
    if (!is_in_arena(block)) {
        free(block);
        return;
    }
    if (is_restored)
        return;
    memset(block, 0, *header_of(block) - HEADER);
    put(block);
}

void *arena_calloc(size_t count, size_t size)
{
    size_t whole;

    if (is_restored)
        return calloc(count, size);
    if (__builtin_mul_overflow(count, size, &whole))
        return errno = ENOMEM, NULL;
    return arena_malloc(whole);
}

void *arena_realloc(void *block, size_t size)
{
    void *moved;
    size_t room;

    if (!block)
        return arena_malloc(size);
    if (!is_in_arena(block))
        return realloc(block, size);
    room = *header_of(block) - HEADER;
    if (size <= room) {
        if (!is_restored)
            memset((char *)block + size, 0, room - size);
        return block;
    }
    moved = arena_malloc(size);
    if (moved) {
        memcpy(moved, block, room);
        arena_free(block);
    }
    return moved;
}

void *arena_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset)
{
    if (!is_restored && flags & MAP_ANONYMOUS && !(protection & PROT_EXEC))
        return arena_pages(size);
    return mmap(address, size, protection, flags, fd, offset);
}

/* With files larger than 2 GB in mind, by another name of the same function on 64 bits. */
void *arena_mmap64(void *, size_t, int, int, int, off_t) __attribute__((alias("arena_mmap")));

int arena_munmap(void *address, size_t size)
{
    if (!is_in_arena(address))
        return munmap(address, size);
    if (!is_restored)
        memset(address, 0, size);
    return 0;
}

/* Forgets which blocks are free: the links between them would be all that a dump has in unused memory. */
void arena_seal(void)
{
    for (unsigned bin = 0; bin < BINS; bin++)
        while (free_blocks[bin]) {
            struct block *block = free_blocks[bin];
            free_blocks[bin] = block->next;
            block->next = NULL;
            *header_of(block) = 0;
        }
}

/* Has the blocks for whose numbers there is a 1 or 2 lie in the first or second place, of `sizes`. Before any is taken. */
void arena_separate(const char *numbers, size_t count, const size_t *sizes)
{
    places = numbers;
    places_count = count;
    for (int i = 0; i < HOT_PLACES; i++) {
        hot[i].next = arena_pages(sizes[i]);
        hot[i].end = next_free;
    }
}

/* Keeps the number of the last block that each granule belonged to, from 1 on; with room for the whole arena. */
void arena_number(unsigned *numbers)
{
    block_numbers = numbers;
}
