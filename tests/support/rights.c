/* Prints the program's name, the effective user and the effective capabilities of the process that runs it. */
#define _GNU_SOURCE
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2];
    const char *name = argc > 0 ? strrchr(argv[0], '/') : NULL;

    if (syscall(SYS_capget, &header, sets) < 0)
        return 1;
    unsigned long long effective = (unsigned long long)sets[1].effective << 32 | sets[0].effective;
    printf("%s %u %llx\n", name ? name + 1 : "", geteuid(), effective);
    return 0;
}
