/*
 * The first program of a machine that boots from a disk: it makes the root there the root of the machine.
 *
 * It is /init of the initial file system, and loads the modules that modules/order names. Among all block devices it
 * takes the one with a hash tree for the root hash on the kernel's command line: so neither names of devices nor a
 * table of partitions have to be trusted. The root behind it is a device of dm-verity, of which the kernel checks every
 * block when it reads it, and panics if one is not that of the image. Then the root's own /init is executed.
 *
 * minit.root_hash and minit.root_blocks have all that decides what is a good root. What the disk says of its hash tree
 * is used to find it and for nothing else: who may write there could name a weaker hash.
 *
 * With minit.watchdog=DEVICE:SECONDS it starts a watchdog as soon as modules/order has loaded its driver, and leaves it
 * open for the machine's first program. Whatever hangs before that feeds it resets the machine.
 *
 * It is static and uses no C library, as launcher.c.
 */
#include <linux/ioctl.h>

#include <linux/dm-ioctl.h>
#include <linux/watchdog.h>

#include "dump/systemcall.h"

#define AT_FDCWD (-100)
#define O_RDONLY 0
#define O_WRONLY 1
#define O_RDWR 2
#define O_CLOEXEC 02000000
#define MS_RDONLY 1
#define MS_MOVE 8192
#define MS_NOSUID_NODEV_NOEXEC (2 | 4 | 8)
#define MNT_DETACH 2
#define EEXIST 17
#define ENODEV 19
#define REBOOT_MAGIC 0xfee1dead
#define REBOOT_MAGIC_2 672274793
#define REBOOT_RESTART 0x1234567

#define FSTYPE "squashfs"
#define BLOCK_SIZE 4096
#define SECTORS_PER_BLOCK (BLOCK_SIZE / 512)
#define HASH_DIGITS 64
#define TEXT_SIZE 4096
#define UUID_OFFSET 16 /* of a superblock of veritysetup, behind its signature and two numbers */
#define UUID_SIZE 16
#define SIGNATURE "verity\0"
#define ATTEMPTS 1200
#define ATTEMPT_NANOSECONDS 50000000
#define FAILURE_SECONDS 10


#if defined(__x86_64__)
enum {
    SYS_read = 0,
    SYS_write = 1,
    SYS_close = 3,
    SYS_ioctl = 16,
    SYS_pread64 = 17,
    SYS_nanosleep = 35,
    SYS_execve = 59,
    SYS_chdir = 80,
    SYS_chroot = 161,
    SYS_mount = 165,
    SYS_umount2 = 166,
    SYS_reboot = 169,
    SYS_getdents64 = 217,
    SYS_openat = 257,
    SYS_unlinkat = 263,
    SYS_finit_module = 313
};

__asm__(".globl _start\n"
        "_start:\n"
        "    xor %ebp, %ebp\n"
        "    mov %rsp, %rdi\n"
        "    and $-16, %rsp\n"
        "    call open_root\n");
#elif defined(__aarch64__)
enum {
    SYS_ioctl = 29,
    SYS_unlinkat = 35,
    SYS_umount2 = 39,
    SYS_mount = 40,
    SYS_chdir = 49,
    SYS_chroot = 51,
    SYS_openat = 56,
    SYS_close = 57,
    SYS_getdents64 = 61,
    SYS_read = 63,
    SYS_write = 64,
    SYS_pread64 = 67,
    SYS_nanosleep = 101,
    SYS_reboot = 142,
    SYS_execve = 221,
    SYS_finit_module = 273
};

__asm__(".globl _start\n"
        "_start:\n"
        "    mov x29, #0\n"
        "    mov x0, sp\n"
        "    bl open_root\n");
#endif

struct entry {
    unsigned long inode, next;
    unsigned short size;
    unsigned char type;
    char name[];
};

/* All is zero before it is filled, and too large for the stack of a program without a guard. */
static char text[TEXT_SIZE], superblock[BLOCK_SIZE];
static char entries[TEXT_SIZE] __attribute__((aligned(8)));
static struct {
    struct dm_ioctl control;
    struct dm_target_spec target;
    char parameters[TEXT_SIZE];
} request;

static long length(const char *string)
{
    long count = 0;

    while (string[count])
        count++;
    return count;
}

static int starts_with(const char *string, const char *prefix)
{
    while (*prefix)
        if (*string++ != *prefix++)
            return 0;
    return 1;
}

static char *append(char *end, const char *string)
{
    while (*string)
        *end++ = *string++;
    *end = 0;
    return end;
}

static char *append_number(char *end, unsigned long number)
{
    char digits[24];
    char *digit = digits + sizeof digits;

    *--digit = 0;
    do
        *--digit = '0' + number % 10;
    while ((number /= 10) > 0);
    return append(end, digit);
}

static void say(const char *what, const char *name, long result)
{
    static char line[TEXT_SIZE];
    char *end = append(append(append(append(line, "minit: "), what), " "), name);

    if (result < 0)
        end = append_number(append(end, ": errno "), -result);
    end = append(end, "\n");
    system_call(SYS_write, 2, (long)line, end - line, 0, 0);
}

static void sleep(long seconds, long nanoseconds)
{
    long duration[] = {seconds, nanoseconds};

    system_call(SYS_nanosleep, (long)duration, 0, 0, 0, 0);
}

static __attribute__((noreturn)) void fail(const char *what, const char *name, long result)
{
    say(what, name, result);
    /* Time to read why. The firmware may then have another system to boot. */
    sleep(FAILURE_SECONDS, 0);
    for (;;)
        system_call(SYS_reboot, REBOOT_MAGIC, REBOOT_MAGIC_2, REBOOT_RESTART, 0, 0);
}

static long open_file(const char *path, long flags)
{
    return system_call(SYS_openat, AT_FDCWD, (long)path, flags | O_CLOEXEC, 0, 0);
}

static void close_file(long file)
{
    system_call(SYS_close, file, 0, 0, 0, 0);
}

static void mount(const char *source, const char *target, const char *fstype, long flags)
{
    long result = system_call(SYS_mount, (long)source, (long)target, (long)fstype, flags, 0);

    if (result < 0)
        fail("cannot mount", source, result);
}

/* Reads a file as a string into `text`, whose last byte stays zero. */
static void read_text(const char *path)
{
    long file = open_file(path, O_RDONLY), count, size = 0;

    if (file < 0)
        fail("cannot open", path, file);
    while ((count = system_call(SYS_read, file, (long)text + size, TEXT_SIZE - 1 - size, 0, 0)) > 0)
        size += count;
    if (count < 0)
        fail("cannot read", path, count);
    if (size == TEXT_SIZE - 1)
        fail("too long:", path, 0);
    text[size] = 0;
    close_file(file);
}

static void load_modules(void)
{
    char path[TEXT_SIZE + 32];
    char *name = text, *end;
    long file, result;

    read_text("/modules/order");
    for (; *name; name = end + 1) {
        for (end = name; *end && *end != '\n'; end++)
            ;
        if (!*end)
            break;
        *end = 0;
        append(append(append(path, "/modules/"), name), ".ko");
        file = open_file(path, O_RDONLY);
        result = file < 0 ? file : system_call(SYS_finit_module, file, (long)"", 0, 0, 0);
        if (result < 0 && result != -EEXIST && result != -ENODEV)
            say("cannot load the module", name, result);
        if (file >= 0)
            close_file(file);
        /* Its memory is free again. */
        system_call(SYS_unlinkat, AT_FDCWD, (long)path, 0, 0, 0);
    }
}

/* Copies the value of a word of the command line in `text`, and returns its length, 0 if it is not there. */
static long copy_word(const char *name, char *value, long size)
{
    const char *word = text, *end = text;
    long count = 0;

    while (*end) {
        for (word = end; *word == ' ' || *word == '\n'; word++)
            ;
        for (end = word; *end && *end != ' ' && *end != '\n'; end++)
            ;
        if (starts_with(word, name))
            for (word += length(name), count = 0; word < end && count < size - 1; count++)
                value[count] = *word++;
    }
    value[count] = 0;
    return count;
}

static void start_watchdog(void)
{
    char device[TEXT_SIZE];
    long count = copy_word("minit.watchdog=", device, sizeof device), i, file;
    int seconds = 0;

    for (i = count; i > 0 && device[i] != ':'; i--)
        ;
    if (i <= 0)
        return;
    device[i] = 0;
    while (++i < count)
        seconds = seconds * 10 + device[i] - '0';
    /* Without close-on-exec. Where there is none yet, the first program opens it. */
    file = system_call(SYS_openat, AT_FDCWD, (long)device, O_WRONLY, 0, 0);
    if (file >= 0)
        system_call(SYS_ioctl, file, WDIOC_SETTIMEOUT, (long)&seconds, 0, 0);
}

static int digit(char letter)
{
    if (letter >= '0' && letter <= '9')
        return letter - '0';
    return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

static int has_hash(const char *node, const char *hash, unsigned long blocks)
{
    long file = open_file(node, O_RDONLY), count, i;

    if (file < 0)
        return 0;
    count = system_call(SYS_pread64, file, (long)superblock, BLOCK_SIZE, blocks * BLOCK_SIZE, 0);
    close_file(file);
    if (count != BLOCK_SIZE)
        return 0;
    for (i = 0; i < (long)sizeof SIGNATURE; i++)
        if (superblock[i] != SIGNATURE[i])
            return 0;
    for (i = 0; i < UUID_SIZE; i++)
        if ((unsigned char)superblock[UUID_OFFSET + i] != (digit(hash[2 * i]) << 4 | digit(hash[2 * i + 1])))
            return 0;
    return 1;
}

/* Writes the path of the block device into `node` and returns 1 if there is one with the hash. */
static int find_device(char *node, const char *hash, unsigned long blocks)
{
    long directory = open_file("/sys/class/block", O_RDONLY), size, place;
    int found = 0;

    if (directory < 0)
        return 0;
    while (!found && (size = system_call(SYS_getdents64, directory, (long)entries, sizeof entries, 0, 0)) > 0)
        for (place = 0; !found && place < size; place += ((struct entry *)(entries + place))->size) {
            const char *name = ((struct entry *)(entries + place))->name;
            if (*name != '.' && !starts_with(name, "loop") && !starts_with(name, "ram")) {
                append(append(node, "/dev/"), name);
                found = has_hash(node, hash, blocks);
            }
        }
    close_file(directory);
    return found;
}

static void map(long control, unsigned long command, unsigned flags, unsigned targets, const char *what)
{
    long result;

    request.control.version[0] = DM_VERSION_MAJOR;
    request.control.data_size = sizeof request;
    request.control.data_start = sizeof request.control;
    request.control.flags = flags;
    request.control.target_count = targets;
    request.control.dev = 0; /* it is named */
    append(request.control.name, "root");
    result = system_call(SYS_ioctl, control, command, (long)&request, 0, 0);
    if (result < 0)
        fail("dm-verity: cannot", what, result);
}

/* Makes the device with what is on `node`, as far as it has the hash, and writes its path there. */
static void map_root(char *node, const char *hash, unsigned long blocks)
{
    long control = open_file("/dev/mapper/control", O_RDWR);
    unsigned minor;
    char *end;

    if (control < 0)
        fail("cannot open", "/dev/mapper/control", control);
    map(control, DM_DEV_CREATE, DM_READONLY_FLAG, 0, "make a device");
    minor = (request.control.dev & 0xff) | (request.control.dev >> 12 & 0xfff00);
    request.target.length = blocks * SECTORS_PER_BLOCK;
    append(request.target.target_type, "verity");
    /* The kernel's Documentation/admin-guide/device-mapper/verity.rst: the tree is in the block behind the data. */
    end = append(append(append(append(request.parameters, "1 "), node), " "), node);
    end = append_number(append(end, " 4096 4096 "), blocks);
    end = append_number(append(end, " "), blocks + 1);
    append(append(append(end, " sha256 "), hash), " - 1 panic_on_corruption");
    map(control, DM_TABLE_LOAD, DM_READONLY_FLAG, 1, "use");
    map(control, DM_DEV_SUSPEND, 0, 0, "start");
    close_file(control);
    append_number(append(node, "/dev/dm-"), minor);
}

static void enter_root(void)
{
    static const char *const left[] = {"/proc", "/sys", "/dev"};
    unsigned i;

    for (i = 0; i < sizeof left / sizeof *left; i++)
        system_call(SYS_umount2, (long)left[i], MNT_DETACH, 0, 0, 0);
    system_call(SYS_unlinkat, AT_FDCWD, (long)"/modules/order", 0, 0, 0);
    system_call(SYS_unlinkat, AT_FDCWD, (long)"/init", 0, 0, 0);
    system_call(SYS_chdir, (long)"/root", 0, 0, 0, 0);
    mount(".", "/", 0, MS_MOVE);
    system_call(SYS_chroot, (long)".", 0, 0, 0, 0);
    system_call(SYS_chdir, (long)"/", 0, 0, 0, 0);
}

__attribute__((noreturn, used)) void open_root(long *stack)
{
    char **argv = (char **)(stack + 1);
    char **environment = argv + *stack + 1;
    char hash[HASH_DIGITS + 2], count[24], node[TEXT_SIZE];
    unsigned long blocks = 0;
    long i, hash_length, count_length, attempt;

    mount("proc", "/proc", "proc", MS_NOSUID_NODEV_NOEXEC);
    mount("sysfs", "/sys", "sysfs", MS_NOSUID_NODEV_NOEXEC);
    mount("devtmpfs", "/dev", "devtmpfs", 0);
    load_modules();

    read_text("/proc/cmdline");
    start_watchdog();
    hash_length = copy_word("minit.root_hash=", hash, sizeof hash);
    count_length = copy_word("minit.root_blocks=", count, sizeof count);
    for (i = 0; i < hash_length && digit(hash[i]) >= 0; i++)
        ;
    if (i != HASH_DIGITS || hash_length != HASH_DIGITS)
        fail("kernel command line: not a hash in hexadecimal digits: minit.root_hash =", hash, 0);
    for (i = 0; i < count_length && count[i] >= '0' && count[i] <= '9'; i++)
        blocks = blocks * 10 + count[i] - '0';
    if (!blocks || i != count_length)
        fail("kernel command line: not a number of blocks: minit.root_blocks =", count, 0);

    for (attempt = 0; !find_device(node, hash, blocks); attempt++) {
        if (attempt == ATTEMPTS)
            fail("no disk has, within a minute, a root with the hash", hash, 0);
        sleep(0, ATTEMPT_NANOSECONDS);
    }
    map_root(node, hash, blocks);
    mount(node, "/root", FSTYPE, MS_RDONLY);
    enter_root();
    fail("cannot run", "/init", system_call(SYS_execve, (long)"/init", (long)argv, (long)environment, 0, 0));
}
