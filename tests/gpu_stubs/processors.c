// To be loaded before the C library: the process may use as many processors as STUB_PROCESSORS says, whatever the machine has.
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>

__attribute__((visibility("default"))) int sched_getaffinity(pid_t process, size_t bytes, cpu_set_t *set)
{
    const char *count = getenv("STUB_PROCESSORS");
    (void)process;
    memset(set, 0, bytes);
    for (size_t number = 0; count && number < strtoul(count, NULL, 10) && number < 8 * bytes; number++)
        CPU_SET_S(number, bytes, set);
    return 0;
}
