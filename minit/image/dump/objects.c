/*
 * Loads shared objects into the arena: extension modules and the libraries they need, as dlopen(3) would.
 *
 * The C library's own dlopen cannot: its objects lie at random addresses, and a static program has another C library
 * than they expect. What an object needs of the C library, or of CPython, is looked up by name in a table that was
 * linked into this program. Versions of symbols (ld.so(8)) are not looked at: this C library is the one that the
 * objects were linked with. Variables of threads (TLS) exist once, since the programs here have one thread.
 *
 * Constructors run when an object is loaded, on the machine that builds. So its processor should decide nothing:
 * getauxval(3) knows none then, and functions that are chosen by it (IFUNC) are refused. Who asks by the instruction
 * cpuid of x86-64 is not noticed. DT_INIT, by which OpenSSL's library does, is for the program to call, as _init.
 */
#include "dump.h"
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define THIS_PROGRAM ((void *)-1)

#if defined(__x86_64__)
#define MACHINE EM_X86_64
enum {
    RELATIVE = R_X86_64_RELATIVE,
    ABSOLUTE = R_X86_64_64,
    GLOBAL = R_X86_64_GLOB_DAT,
    FUNCTION = R_X86_64_JUMP_SLOT,
    TLS_MODULE = R_X86_64_DTPMOD64,
    TLS_OFFSET = R_X86_64_DTPOFF64,
    TLS_DESCRIPTOR = R_X86_64_TLSDESC
};
#elif defined(__aarch64__)
#define MACHINE EM_AARCH64
enum {
    RELATIVE = R_AARCH64_RELATIVE,
    ABSOLUTE = R_AARCH64_ABS64,
    GLOBAL = R_AARCH64_GLOB_DAT,
    FUNCTION = R_AARCH64_JUMP_SLOT,
    TLS_MODULE = R_AARCH64_TLS_DTPMOD,
    TLS_OFFSET = R_AARCH64_TLS_DTPREL,
    TLS_DESCRIPTOR = R_AARCH64_TLSDESC
};
#else
#error "relocations are known for x86-64 and aarch64 only"
#endif

struct object {
    struct object *next;
    char *base, *text, *strings, *thread_variables, *initializer;
    size_t text_size;
    Elf64_Sym *symbols;
    size_t symbol_count;
    char name[]; /* without directory */
};
static SAVED struct object *objects;
static char message[512];

int library_directory = -1;

static void *find_in_program(const char *name)
{
    for (const struct symbol *symbol = program_symbols; symbol->name; symbol++)
        if (!strcmp(symbol->name, name))
            return symbol->address;
    return NULL;
}

static void *find_in_object(const struct object *object, const char *name)
{
    for (size_t i = 0; i < object->symbol_count; i++) {
        const Elf64_Sym *symbol = &object->symbols[i];
        unsigned type = ELF64_ST_TYPE(symbol->st_info);
        if (symbol->st_shndx && type != STT_TLS && type != STT_GNU_IFUNC &&
            !strcmp(object->strings + symbol->st_name, name))
            return object->base + symbol->st_value;
    }
    return NULL;
}

static void *find(const char *name)
{
    void *address = find_in_program(name);

    for (struct object *object = objects; object && !address; object = object->next)
        address = find_in_object(object, name);
    return address;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The index of the object and an offset: what the code of a thread's variable calls with, by the ABI. */
struct thread_variable {
    struct object *object;
    unsigned long offset;
};

void *thread_variable_address(const struct thread_variable *variable)
{
    return variable->object->thread_variables + variable->offset;
}

/* By this name objects call getauxval(3). */
unsigned long processor_value(unsigned long type)
{
    return is_restored || (type != AT_HWCAP && type != AT_HWCAP2) ? getauxval(type) : 0;
}

#if defined(__aarch64__)
/* Its argument is a pair of this function and an address; it returns the distance to that from the thread pointer. */
void thread_variable_distance(void);
__asm__(".globl thread_variable_distance\n"
        "thread_variable_distance:\n"
        "    str x1, [sp, #-16]!\n"
        "    mrs x1, tpidr_el0\n"
        "    ldr x0, [x0, #8]\n"
        "    sub x0, x0, x1\n"
        "    ldr x1, [sp], #16\n"
        "    ret\n");
#endif

static int relocate(struct object *object, const Elf64_Rela *relocation)
{
    unsigned long *place = (unsigned long *)(object->base + relocation->r_offset);
    unsigned long kind = ELF64_R_TYPE(relocation->r_info), index = ELF64_R_SYM(relocation->r_info);
    const Elf64_Sym *symbol = object->symbols + index;
    const char *name = object->strings + symbol->st_name;
    unsigned type = ELF64_ST_TYPE(symbol->st_info);
    unsigned long value = 0;

    if (index && type == (symbol->st_shndx ? STT_GNU_IFUNC : STT_TLS)) {
        snprintf(message, sizeof message, "%s needs %s, a %s", object->name, name,
                 type == STT_TLS ? "thread's variable of another object" : "function for each kind of processor (IFUNC)");
        return -1;
    }
    if (index && type != STT_TLS) {
        value = (unsigned long)(symbol->st_shndx ? object->base + symbol->st_value : find(name));
        if (!value && ELF64_ST_BIND(symbol->st_info) != STB_WEAK) {
            snprintf(message, sizeof message, "%s needs %s, which nothing has", object->name, name);
            return -1;
        }
    } else if (index)
        value = symbol->st_value;
    switch (kind) {
    case RELATIVE:
        *place = (unsigned long)object->base + relocation->r_addend;
        return 0;
    case ABSOLUTE:
        *place = value + relocation->r_addend;
        return 0;
    case GLOBAL:
    case FUNCTION:
        *place = value;
        return 0;
    case TLS_MODULE:
        *place = (unsigned long)object;
        return 0;
    case TLS_OFFSET:
        *place = value + relocation->r_addend;
        return 0;
#if defined(__aarch64__)
    case TLS_DESCRIPTOR:
        place[0] = (unsigned long)thread_variable_distance;
        place[1] = (unsigned long)object->thread_variables + value + relocation->r_addend;
        return 0;
#endif
    }
    snprintf(message, sizeof message, "%s has a relocation of the unknown kind %lu", object->name, kind);
    return -1;
}

/* An address, or a bit for each of the 63 words that follow the last one. */
static void relocate_packed(const struct object *object, const Elf64_Relr *entry, size_t count)
{
    unsigned long *place = NULL;

    for (; count; count--, entry++)
        if (*entry & 1) {
            for (int bit = 1; bit < 64; bit++)
                if (*entry >> bit & 1)
                    place[bit - 1] += (unsigned long)object->base;
            place += 63;
        } else {
            place = (unsigned long *)(object->base + *entry);
            *place++ += (unsigned long)object->base;
        }
}

static char *initializer(const struct object *object, const Elf64_Dyn *entry)
{
    for (; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_INIT)
            return object->base + entry->d_un.d_ptr;
    return NULL;
}

/* A destructor would be one of the program, which has its own end. */
static void construct(const struct object *object, const Elf64_Shdr *section)
{
    void (**constructor)(int, char **, char **) = (void *)(object->base + section->sh_addr);
    char *arguments[] = {NULL};

    for (size_t n = section->sh_size / sizeof *constructor; n; n--, constructor++)
        (*constructor)(0, arguments, environ);
}

static struct object *load(const char *path);

/* What is not in the directory, the C library and CPython, is this program. */
static int load_needed(const struct object *object, const Elf64_Dyn *entry)
{
    for (; entry->d_tag != DT_NULL; entry++) {
        const char *name = object->strings + entry->d_un.d_val;
        if (entry->d_tag == DT_NEEDED && faccessat(library_directory, name, F_OK, 0) == 0 && !load(name))
            return -1;
    }
    return 0;
}

static void protect(const struct object *object)
{
    if (object->text && mprotect(object->text, object->text_size, PROT_READ | PROT_EXEC) < 0)
        fail("cannot protect the code of %s: %s", object->name, strerror(errno));
}

/* Copies the segments of a file and connects them to what is loaded already. */
static struct object *place(const char *file, size_t size, const char *name)
{
    const Elf64_Ehdr *header = (const void *)file;
    const Elf64_Phdr *segments = (const void *)(file + header->e_phoff);
    const Elf64_Shdr *sections = (const void *)(file + header->e_shoff);
    const Elf64_Dyn *dynamic = NULL;
    struct object *object;
    size_t end = 0;

    if (size < sizeof *header || memcmp(header->e_ident, ELFMAG, SELFMAG) || header->e_machine != MACHINE ||
        header->e_type != ET_DYN || !header->e_shoff) {
        snprintf(message, sizeof message, "%s is no shared object of this machine with section headers", name);
        return NULL;
    }
    for (int i = 0; i < header->e_phnum; i++)
        if (segments[i].p_type == PT_LOAD)
            end = segments[i].p_vaddr + segments[i].p_memsz;
    object = arena_malloc(sizeof *object + strlen(name) + 1);
    memset(object, 0, sizeof *object);
    strcpy(object->name, name);
    object->base = arena_pages(end);
    for (int i = 0; i < header->e_phnum; i++) {
        const Elf64_Phdr *segment = &segments[i];
        char *start = object->base + segment->p_vaddr;
        if (segment->p_type == PT_LOAD) {
            memcpy(start, file + segment->p_offset, segment->p_filesz);
            if (segment->p_flags & PF_X) {
                object->text = (char *)((unsigned long)start & -PAGE);
                object->text_size = (start + segment->p_memsz - object->text + PAGE - 1) & -PAGE;
            }
        } else if (segment->p_type == PT_DYNAMIC)
            dynamic = (const void *)start;
        else if (segment->p_type == PT_TLS)
            object->thread_variables = arena_pages(segment->p_memsz);
    }
    for (int i = 0; i < header->e_shnum; i++)
        if (sections[i].sh_type == SHT_DYNSYM) {
            object->symbols = (void *)(object->base + sections[i].sh_addr);
            object->symbol_count = sections[i].sh_size / sizeof *object->symbols;
            object->strings = object->base + sections[sections[i].sh_link].sh_addr;
        }
    if (dynamic && load_needed(object, dynamic) < 0)
        return NULL;
    for (int i = 0; i < header->e_shnum; i++)
        if (sections[i].sh_type == SHT_RELA && sections[i].sh_flags & SHF_ALLOC) {
            const Elf64_Rela *relocation = (const void *)(file + sections[i].sh_offset);
            for (size_t n = sections[i].sh_size / sizeof *relocation; n; n--, relocation++)
                if (relocate(object, relocation) < 0)
                    return NULL;
        } else if (sections[i].sh_type == SHT_RELR)
            relocate_packed(object, (const void *)(file + sections[i].sh_offset), sections[i].sh_size / sizeof(Elf64_Relr));
    for (int i = 0; i < header->e_phnum; i++)
        if (segments[i].p_type == PT_TLS)
            memcpy(object->thread_variables, object->base + segments[i].p_vaddr, segments[i].p_filesz);
    __builtin___clear_cache(object->text, object->text + object->text_size);
    protect(object);
    object->initializer = dynamic ? initializer(object, dynamic) : NULL;
    for (int i = 0; i < header->e_shnum; i++)
        if (sections[i].sh_type == SHT_INIT_ARRAY)
            construct(object, &sections[i]);
    return object;
}

static struct object *load(const char *path)
{
    struct stat status;
    struct object *object;
    const char *name = base_name(path);
    char *file;
    int fd;

    for (object = objects; object; object = object->next)
        if (!strcmp(object->name, name))
            return object;
    /* Objects are a part of the program: a restored one has those it has. */
    fd = is_restored ? (errno = ENOENT, -1) : openat(library_directory, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) < 0) {
        snprintf(message, sizeof message, "cannot load %s: %s", path, strerror(errno));
        return NULL;
    }
    file = mmap(NULL, status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (file == MAP_FAILED) {
        snprintf(message, sizeof message, "cannot read %s: %s", path, strerror(errno));
        return NULL;
    }
    object = place(file, status.st_size, name);
    munmap(file, status.st_size);
    if (object) {
        object->next = objects;
        objects = object;
    }
    return object;
}

void protect_objects(void)
{
    for (const struct object *object = objects; object; object = object->next)
        protect(object);
}

/* By these names CPython and its modules call dlopen(3) and its like. */

void *object_dlopen(const char *path, int flags)
{
    (void)flags;
    return path ? load(path) : THIS_PROGRAM;
}

void *object_dlsym(void *handle, const char *name)
{
    void *address = handle == THIS_PROGRAM || !handle ? find(name) : find_in_object(handle, name);

    if (!address && handle && handle != THIS_PROGRAM && !strcmp(name, "_init"))
        address = ((struct object *)handle)->initializer;
    if (!address)
        snprintf(message, sizeof message, "undefined symbol: %s", name);
    return address;
}

int object_dlclose(void *handle)
{
    (void)handle;
    return 0;
}

char *object_dlerror(void)
{
    return message;
}
