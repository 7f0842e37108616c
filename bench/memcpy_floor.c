/* The floor under any read of cached data: memcpy from memory that holds the file's bytes, block by block,
 * into slots that are used again (as a reader's buffers are), or into as much memory again.
 *
 *   memcpy_floor SOURCE_BYTES BLOCK_BYTES SLOTS THREADS SECONDS     (SLOTS 0: into as much memory again)
 *
 * Prints one JSON object. The source is written first, so that its pages are there. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

struct worker {
    size_t source_bytes, block_bytes, slots;
    double seconds;
    uint64_t copies;
    char *source, *target;
};

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static char *memory(size_t bytes) {
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(3);
    }
    madvise(at, bytes, MADV_HUGEPAGE);
    memset(at, 0x5a, bytes);
    return at;
}

static void *copy(void *argument) {
    struct worker *w = argument;
    size_t blocks = w->source_bytes / w->block_bytes;
    double end = now(CLOCK_MONOTONIC) + w->seconds;
    /* The clock is read once for 16 copies: it isn't what is measured. */
    for (uint64_t i = 0;; i++) {
        if (i % 16 == 0 && now(CLOCK_MONOTONIC) >= end) {
            w->copies = i;
            return NULL;
        }
        memcpy(w->target + i % w->slots * w->block_bytes, w->source + i % blocks * w->block_bytes, w->block_bytes);
        __asm__ volatile("" : : "r"(w->target) : "memory");
    }
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "memcpy_floor SOURCE_BYTES BLOCK_BYTES SLOTS THREADS SECONDS\n");
        return 2;
    }
    size_t source_bytes = strtoull(argv[1], NULL, 0), block_bytes = strtoull(argv[2], NULL, 0);
    size_t slots = strtoull(argv[3], NULL, 0), threads = strtoull(argv[4], NULL, 0);
    if (!block_bytes || source_bytes < block_bytes || !threads || threads > 64) {
        fprintf(stderr, "memcpy_floor: a block must fit into the source, and threads be 1 to 64\n");
        return 2;
    }
    if (!slots) slots = source_bytes / block_bytes;
    struct worker workers[64];
    pthread_t ids[64];
    for (size_t i = 0; i < threads; i++)
        workers[i] = (struct worker){source_bytes, block_bytes, slots, atof(argv[5]), 0, memory(source_bytes), memory(slots * block_bytes)};
    double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    for (size_t i = 0; i < threads; i++) pthread_create(&ids[i], NULL, copy, &workers[i]);
    uint64_t copies = 0;
    for (size_t i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        copies += workers[i].copies;
    }
    wall = now(CLOCK_MONOTONIC) - wall, cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    printf("{\"seconds\": %.6f, \"cpu_s\": %.6f, \"ios\": %llu, \"bytes\": %llu}\n", wall, cpu,
           (unsigned long long)copies, (unsigned long long)copies * block_bytes);
    return 0;
}
