/* The floor under a bounce: threads copy blocks of a mapped file into pinned buffers, each of which a copy engine empties into
 * memory of a GPU meanwhile. Nothing is checked, found or taken to its place. A library for bench/child_kv.py:
 *
 *   cc -O2 -shared -fPIC -pthread -o pinned_floor.so bench/pinned_floor.c -ldl
 *
 * On processors with AVX-512 a copy asks for lines 6 KiB ahead, which was the cheapest way on Xeons; else it is memcpy. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <immintrin.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

enum { THREADS_MAX = 64, BUFFERS = 3, HUGE_BYTES = 2 << 20, NOT_READY = 600, AHEAD = 6144 };

typedef int (*call)();
static call set_current, get_current, host_register, copy_to_device, stream_create, stream_synchronize, event_create,
    event_record, event_query;
static void *context, *streams[THREADS_MAX], *events[THREADS_MAX][BUFFERS];
static char *buffers[THREADS_MAX];
static size_t buffer_bytes;
static int threads;

struct load {
    const char *file;
    const uint64_t *offsets;
    size_t count, bytes;
    uint64_t to;
    atomic_size_t next;
    atomic_int failed;
};

struct worker {
    struct load *load;
    int number;
};

__attribute__((target("avx512f"))) static void copy_ahead(char *to, const char *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 256) {
        for (int line = 0; line < 4; line++)
            _mm_prefetch(from + i + AHEAD + 64 * line, _MM_HINT_T1);
        for (int line = 0; line < 4; line++)
            _mm512_storeu_si512(to + i + 64 * line, _mm512_loadu_si512(from + i + 64 * line));
    }
}

static void copy(char *to, const char *from, size_t bytes) {
    if (__builtin_cpu_supports("avx512f") && bytes % 256 == 0)
        copy_ahead(to, from, bytes);
    else
        memcpy(to, from, bytes);
}

/* For so many threads, in the context of the caller. Returns 0, or what the driver said. */
int floor_open(int count, size_t bytes) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver || count > THREADS_MAX || bytes % HUGE_BYTES)
        return -1;
    set_current = (call)dlsym(driver, "cuCtxSetCurrent");
    get_current = (call)dlsym(driver, "cuCtxGetCurrent");
    host_register = (call)dlsym(driver, "cuMemHostRegister_v2");
    copy_to_device = (call)dlsym(driver, "cuMemcpyHtoDAsync_v2");
    stream_create = (call)dlsym(driver, "cuStreamCreate");
    stream_synchronize = (call)dlsym(driver, "cuStreamSynchronize");
    event_create = (call)dlsym(driver, "cuEventCreate");
    event_record = (call)dlsym(driver, "cuEventRecord");
    event_query = (call)dlsym(driver, "cuEventQuery");
    threads = count;
    buffer_bytes = bytes;
    int error = get_current(&context);
    for (int i = 0; i < count && !error; i++) {
        size_t whole = BUFFERS * bytes;
        char *at = mmap(NULL, whole + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED)
            return -1;
        at += -(uintptr_t)at % HUGE_BYTES;
        madvise(at, whole, MADV_HUGEPAGE);
        memset(at, 0x5a, whole);
        buffers[i] = at;
        error = host_register(at, whole, 0);
        error = error ? error : stream_create(&streams[i], 1);
        for (int buffer = 0; buffer < BUFFERS && !error; buffer++)
            error = event_create(&events[i][buffer], 2);
    }
    return error;
}

static void *work(void *argument) {
    struct worker *worker = argument;
    struct load *load = worker->load;
    void *stream = streams[worker->number], **done = events[worker->number];
    int error = set_current(context);
    prctl(PR_SET_TIMERSLACK, 1);
    for (size_t turn = 0; !error; turn++) {
        size_t next = atomic_fetch_add(&load->next, 1);
        if (next >= load->count)
            break;
        char *buffer = buffers[worker->number] + turn % BUFFERS * buffer_bytes;
        /* A sleep costs less than asking the driver again and again. */
        while (turn >= BUFFERS && (error = event_query(done[turn % BUFFERS])) == NOT_READY)
            nanosleep(&(struct timespec){.tv_nsec = 40000}, NULL);
        copy(buffer, load->file + load->offsets[next], load->bytes);
        error = error ? error : copy_to_device(load->to + next * load->bytes, buffer, load->bytes, stream);
        error = error ? error : event_record(done[turn % BUFFERS], stream);
    }
    error = error ? error : stream_synchronize(stream);
    if (error)
        load->failed = error;
    return NULL;
}

/* Blocks of `bytes` at `offsets` of a mapped file, one behind the other from `to` on. Returns 0, or what the driver said. */
int floor_load(const char *file, const uint64_t *offsets, size_t count, size_t bytes, uint64_t to) {
    struct load load = {.file = file, .offsets = offsets, .count = count, .bytes = bytes, .to = to};
    struct worker workers[THREADS_MAX];
    pthread_t started[THREADS_MAX];
    if (bytes > buffer_bytes)
        return -1;
    for (int i = 0; i < threads; i++) {
        workers[i] = (struct worker){&load, i};
        pthread_create(&started[i], NULL, work, &workers[i]);
    }
    for (int i = 0; i < threads; i++)
        pthread_join(started[i], NULL);
    return load.failed;
}
