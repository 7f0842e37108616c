/* The floor under rows that come from a disk to places of a batch with no copy: threads read by O_DIRECT, one after the other, runs of
 * rows that lie next to each other in the file, each row to a place of its own in memory. Nothing is ordered, checked or handed out.
 *
 *   disk_rows_floor FILE ROW_BYTES ROWS_OF_A_RUN ROOM_BYTES THREADS SECONDS
 *
 * Prints one JSON object. ROW_BYTES: a multiple of 512. Rows go anywhere in ROOM_BYTES, in huge pages, one behind the other as in a
 * batch. Runs begin anywhere in the file. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>

enum { THREADS_MAX = 256, RUN_MAX = 64, HUGE_BYTES = 2 << 20 };

static int file;
static size_t row_bytes, run, places, runs;
static char *room;
static double end;

struct worker {
    uint64_t random, reads;
    int failed;
};

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static uint64_t draw(struct worker *w) {
    w->random ^= w->random << 13, w->random ^= w->random >> 7, w->random ^= w->random << 17;
    return w->random;
}

static void *read_runs(void *argument) {
    struct worker *w = argument;
    struct iovec to[RUN_MAX];
    while (now(CLOCK_MONOTONIC) < end) {
        for (size_t i = 0; i < run; i++)
            to[i] = (struct iovec){room + draw(w) % places * row_bytes, row_bytes};
        ssize_t got = preadv(file, to, run, draw(w) % runs * run * row_bytes);
        if (got != (ssize_t)(run * row_bytes)) {
            w->failed = got < 0 ? errno : EIO;
            return NULL;
        }
        w->reads++;
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 7) {
        fprintf(stderr, "disk_rows_floor FILE ROW_BYTES ROWS_OF_A_RUN ROOM_BYTES THREADS SECONDS\n");
        return 2;
    }
    size_t room_bytes = strtoull(argv[4], NULL, 0), threads = strtoull(argv[5], NULL, 0);
    struct stat found;
    row_bytes = strtoull(argv[2], NULL, 0), run = strtoull(argv[3], NULL, 0);
    file = open(argv[1], O_RDONLY | O_DIRECT);
    if (file < 0 || fstat(file, &found)) {
        perror(argv[1]);
        return 3;
    }
    if (!row_bytes || row_bytes % 512 || !run || run > RUN_MAX || !threads || threads > THREADS_MAX || room_bytes < row_bytes ||
        (size_t)found.st_size < run * row_bytes) {
        fprintf(stderr, "disk_rows_floor: rows have a multiple of 512 bytes, a run has 1 to 64 and fits into the file, threads are 1 to 256\n");
        return 2;
    }
    places = room_bytes / row_bytes, runs = found.st_size / row_bytes / run;
    char *at = mmap(NULL, room_bytes + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        return 3;
    }
    room = (char *)(((uintptr_t)at + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES);
    madvise(room, room_bytes, MADV_HUGEPAGE);
    memset(room, 0x5a, room_bytes);
    static struct worker workers[THREADS_MAX];
    pthread_t ids[THREADS_MAX];
    double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    end = wall + atof(argv[6]);
    for (size_t i = 0; i < threads; i++) {
        workers[i].random = 88172645463325252u + i * 0x9E3779B97F4A7C15u;
        if (pthread_create(&ids[i], NULL, read_runs, &workers[i])) return 3;
    }
    uint64_t reads = 0;
    int failed = 0;
    for (size_t i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        reads += workers[i].reads;
        if (workers[i].failed) failed = workers[i].failed;
    }
    wall = now(CLOCK_MONOTONIC) - wall, cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    if (failed) {
        fprintf(stderr, "disk_rows_floor: %s: %s\n", argv[1], strerror(failed));
        return 4;
    }
    printf("{\"seconds\": %.6f, \"cpu_s\": %.6f, \"ios\": %llu, \"bytes\": %llu}\n", wall, cpu, (unsigned long long)(reads * run),
           (unsigned long long)(reads * run * row_bytes));
    return 0;
}
