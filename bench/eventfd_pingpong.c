/* Two processes that wake each other by eventfds: what a device that sleeps and a driver that sleeps can't be below.
 *
 *   eventfd_pingpong SECONDS [CPU CPU]     blocking reads on both sides; on these processors, or wherever the system likes
 *
 * Prints one JSON object: rounds, seconds, CPU seconds of both processes in exactly that time, the median and the mean of
 * a round in microseconds. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HISTOGRAM 200000 /* tenths of a microsecond */

struct shared {
    atomic_int stop;
    double peer_cpu;
};

static void fail(const char *what)
{
    perror(what);
    exit(3);
}

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void stay_on(const char *cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(atoi(cpu), &set);
    if (sched_setaffinity(0, sizeof set, &set))
        fail("sched_setaffinity");
}

static void signal_fd(int fd)
{
    uint64_t one = 1;
    if (write(fd, &one, 8) != 8)
        fail("write");
}

static void await_fd(int fd)
{
    uint64_t count;
    if (read(fd, &count, 8) != 8)
        fail("read");
}

int main(int argc, char **argv)
{
    static unsigned histogram[HISTOGRAM];
    double seconds = argc > 1 ? atof(argv[1]) : 0;
    if ((argc != 2 && argc != 4) || seconds <= 0) {
        fprintf(stderr, "eventfd_pingpong SECONDS [CPU CPU]\n");
        return 2;
    }
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int ping = eventfd(0, 0), pong = eventfd(0, 0);
    if (shared == MAP_FAILED || ping < 0 || pong < 0)
        fail("eventfd");
    pid_t child = fork();
    if (child < 0)
        fail("fork");
    if (argc == 4)
        stay_on(argv[child ? 2 : 3]);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, 9);
        double cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
        for (;;) {
            await_fd(ping);
            if (atomic_load(&shared->stop))
                break;
            signal_fd(pong);
        }
        shared->peer_cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu;
        return 0;
    }
    for (int i = 0; i < 1000; i++)
        signal_fd(ping), await_fd(pong);
    unsigned long long rounds = 0;
    double begin = seconds_of(CLOCK_MONOTONIC), cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID), last = begin;
    while (last - begin < seconds) {
        signal_fd(ping), await_fd(pong);
        double now = seconds_of(CLOCK_MONOTONIC);
        unsigned long tenth = (unsigned long)((now - last) * 1e7);
        histogram[tenth < HISTOGRAM ? tenth : HISTOGRAM - 1]++;
        last = now;
        rounds++;
    }
    double took = last - begin, used = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    atomic_store(&shared->stop, 1);
    signal_fd(ping);
    int status, median = 0;
    wait(&status);
    for (unsigned long long seen = 0; median < HISTOGRAM && (seen += histogram[median]) * 2 < rounds;)
        median++;
    printf("{\"ios\": %llu, \"seconds\": %.6f, \"cpu_s\": %.6f, \"p50_us\": %.1f, \"mean_us\": %.2f}\n", rounds, took,
           used + shared->peer_cpu, median / 10.0, took / rounds * 1e6);
    return 0;
}
