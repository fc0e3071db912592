/*
 * The very first step of a program that runs another in its place: whether all of its file is there.
 *
 * What a crash of the machine or an unfinished copy leaves may end anywhere, or in zeros. The first page beyond that
 * which is used would end the program by a signal. So this is before everything else, in the first page of the code,
 * with no memory but its stack and nothing of the C library.
 */
#include "dump.h"
#include "systemcall.h"
#include <fcntl.h>
#include <sys/syscall.h>

#define FAILURE 254

/* Where the program's file ends in this very number, which write.c puts here and there; 0 for one that nobody guards. */
__asm__(".section guard.first, \"ax\"\n"
        ".balign 8\n"
        ".globl guarded_end\n"
        "guarded_end: .quad 0\n"
        ".previous\n");

#if defined(__x86_64__)
/* From the kernel's stack to the C library's start, whose argument in %rdx is none. */
__asm__(".section guard.first, \"ax\"\n"
        ".globl start_guarded\n"
        "start_guarded:\n"
        "    mov %rsp, %rdi\n"
        "    call look_at_file\n"
        "    xor %edx, %edx\n"
        "    jmp _start\n"
        ".previous\n");
#elif defined(__aarch64__)
__asm__(".section guard.first, \"ax\"\n"
        ".globl start_guarded\n"
        "start_guarded:\n"
        "    mov x0, sp\n"
        "    bl look_at_file\n"
        "    mov x0, #0\n"
        "    b _start\n"
        ".previous\n");
#endif

/* `stack` is what exec(2) leaves: the number of arguments, these, a zero, the environment. */
FIRST __attribute__((used)) void look_at_file(long *stack)
{
    char **argv = (char **)(stack + 1), **variables = argv + stack[0] + 1;
    long fd, found = 0;
    int has_other = guarded_end && stack[0] >= 2;

    if (!has_other) {
        watch_faults(NULL, variables);
        find_way_back(stack[0], argv);
        return;
    }
    fd = system_call(SYS_openat, AT_FDCWD, (long)argv[0], O_RDONLY | O_CLOEXEC, 0, 0);
    system_call(SYS_pread64, fd, (long)&found, sizeof found, guarded_end, 0);
    system_call(SYS_close, fd, 0, 0, 0, 0);
    if (found == guarded_end) {
        watch_faults(argv + 1, variables);
        return;
    }
    system_call(SYS_execve, (long)argv[1], (long)(argv + 1), (long)variables, 0, 0);
    system_call(SYS_exit_group, FAILURE, 0, 0, 0, 0);
}
