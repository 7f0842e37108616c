/* Plain reads of files with the same checksums: the least that any emulator of accelerators has to do with their bytes.
 *
 * emulate_floor none|crc32|crc32c BLOCK THREADS SECONDS FILE…
 *
 * Each thread takes the next file of the list (round and round), reads it with pread into one block that it uses again
 * and again, so that the checksum finds the bytes in the cache, and sums them with ISA-L (PCLMULQDQ, or VPCLMULQDQ
 * where the processor has it). No framing is parsed and nothing is compared. Prints one JSON line.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <isa-l/crc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum sum { NONE, CRC32, CRC32C };

static enum sum sum;
static size_t block;
static char **files;
static int file_count;
static double until;
static atomic_long next_file;
static atomic_long total_bytes;
static atomic_long total_files;
/* So that the compiler can't leave the checksums out. */
static atomic_uint folded;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static uint32_t add(uint32_t crc, unsigned char *bytes, size_t count) {
    switch (sum) {
    case CRC32: return crc32_gzip_refl(crc, bytes, count);
    case CRC32C: return crc32_iscsi(bytes, (int)count, crc);
    default: return crc;
    }
}

static void fail(const char *file) {
    fprintf(stderr, "emulate_floor: %s: %s\n", file, strerror(errno));
    exit(4);
}

/* One file to its end, or until the time is up; the bytes read. */
static long one(const char *file, unsigned char *into) {
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail(file);
    long at = 0;
    uint32_t crc = 0xffffffff;
    for (;;) {
        ssize_t got = pread(fd, into, block, at);
        if (got < 0) fail(file);
        crc = add(crc, into, got);
        at += got;
        if ((size_t)got < block || now() > until) break;
    }
    close(fd);
    atomic_fetch_xor(&folded, crc);
    return at;
}

static void *work(void *unused) {
    (void)unused;
    unsigned char *into;
    if (posix_memalign((void **)&into, 4096, block)) exit(4);
    memset(into, 0, block);
    while (now() < until) {
        long bytes = one(files[atomic_fetch_add(&next_file, 1) % file_count], into);
        atomic_fetch_add(&total_bytes, bytes);
        atomic_fetch_add(&total_files, 1);
    }
    free(into);
    return NULL;
}

int main(int count, char **words) {
    if (count < 6) {
        fprintf(stderr, "emulate_floor none|crc32|crc32c BLOCK THREADS SECONDS FILE…\n");
        return 2;
    }
    sum = !strcmp(words[1], "crc32") ? CRC32 : !strcmp(words[1], "crc32c") ? CRC32C : NONE;
    block = strtoul(words[2], NULL, 10);
    int threads = atoi(words[3]);
    files = words + 5;
    file_count = count - 5;
    pthread_t running[threads];
    double begin = now();
    until = begin + atof(words[4]);
    for (int t = 0; t < threads; t++) pthread_create(&running[t], NULL, work, NULL);
    for (int t = 0; t < threads; t++) pthread_join(running[t], NULL);
    double seconds = now() - begin;
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu = used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
    printf("{\"seconds\": %.6f, \"bytes\": %ld, \"files\": %ld, \"cpu_s\": %.6f, \"folded\": %u}\n", seconds,
           atomic_load(&total_bytes), atomic_load(&total_files), cpu, atomic_load(&folded));
    return 0;
}
