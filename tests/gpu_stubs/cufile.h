/* The ABI of libcufile 1.15 on 64-bit Linux, as far as the stand-in goes, and what its parts share.
 *
 * Results: status calls return {CUfileOpError, CUresult}, two ints; codes begin at 5000. cuFileRead and cuFileWrite
 * return bytes, -1 with errno, or a negated code. Enumerations are ints. Structures are laid out as C does by itself;
 * their sizes and the offsets that matter are asserted below. */
#ifndef FOREBAY_STUB_CUFILE_H
#define FOREBAY_STUB_CUFILE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

enum code {
    DONE = 0,
    DRIVER_NOT_INITIALIZED = 5001,
    CUDA_DRIVER_ERROR = 5011,
    CUDA_POINTER_INVALID = 5012,
    CUDA_POINTER_RANGE_ERROR = 5014,
    INVALID_FILE_OPEN_FLAG = 5019,
    INVALID_VALUE_GIVEN = 5022,
    MEMORY_ALREADY_REGISTERED = 5023,
    MEMORY_NOT_REGISTERED = 5024,
    HANDLE_NOT_REGISTERED = 5027,
    HANDLE_ALREADY_REGISTERED = 5028,
    BATCH_FULL = 5037,
    IO_MAX_ERROR = 5050,
};

struct status {
    int code, cuda;
};

struct descriptor {
    int kind; /* 1: a file descriptor */
    union {
        int fd;
        void *other;
    } handle;
    const void *operations;
};

struct properties {
    unsigned major, minor;
    size_t poll_threshold_kib, direct_io_max_kib;
    unsigned supports; /* bit 4: NVMe, 11: NVMe by P2P */
    unsigned controls; /* bit 0: polls, 1: allows compatibility mode */
    unsigned features; /* bit 1: batches, 2: streams */
    unsigned device_cache_max_kib, buffer_cache_kib, pinned_max_kib, batch_max, batch_timeout_ms;
};

struct batch_entry {
    int mode; /* 1 */
    char *base;
    off_t file_offset, base_offset;
    size_t bytes;
    void *handle;
    int opcode; /* 0 reads, 1 writes */
    void *cookie;
};

enum { CANCELED = 0x08, COMPLETE = 0x10, TIMED_OUT = 0x20, FAILED = 0x40 };

struct batch_event {
    void *cookie;
    int status;
    size_t result;
};

struct counter {
    uint64_t ok, failed;
};

struct level1 {
    struct counter reads, writes, handle_registers, handle_deregisters, buffer_registers, buffer_deregisters;
    uint64_t read_bytes, write_bytes, read_rate, write_rate;
    uint64_t read_latency_us, write_latency_us, reads_per_s, writes_per_s, read_latency_sum_us, write_latency_sum_us;
    struct counter batch_submits, batch_completes, batch_set_ups, batch_cancels, batch_destroys;
    struct counter enqueued, posix_enqueued, processed, posix_processed;
    struct counter nvfs_submits, p2p_submits, aio_submits, io_uring_submits, mixed_submits, total_submits;
    uint64_t batch_read_bytes, batch_write_bytes, batch_rest[10];
};

struct gpu_stats {
    char uuid[16];
    uint64_t read_bytes, read_rate, read_utilization, read_duration_us;
    uint64_t reads, p2p_reads, nvfs_reads, posix_reads, unaligned_reads, rerouted_reads;
    uint64_t sparse_regions, inline_regions, failed_reads;
    uint64_t write_bytes, write_rate, write_utilization, write_duration_us;
    uint64_t writes, p2p_writes, nvfs_writes, posix_writes, unaligned_writes, rerouted_writes, failed_writes;
    uint64_t maps, maps_ok, maps_failed, unmaps, registered_bytes;
};

struct level3 {
    struct level1 basic;
    uint64_t read_sizes[32], write_sizes[32];
    uint32_t gpu_count;
    struct gpu_stats gpus[16];
};

_Static_assert(sizeof(struct status) == 8, "CUfileError_t");
_Static_assert(sizeof(struct descriptor) == 24 && offsetof(struct descriptor, handle) == 8, "CUfileDescr_t");
_Static_assert(sizeof(struct properties) == 56 && offsetof(struct properties, supports) == 24, "CUfileDrvProps_t");
_Static_assert(sizeof(struct batch_entry) == 64 && offsetof(struct batch_entry, handle) == 40, "CUfileIOParams_t");
_Static_assert(sizeof(struct batch_event) == 24 && offsetof(struct batch_event, result) == 16, "CUfileIOEvents_t");
_Static_assert(sizeof(struct level1) == 512, "CUfileStatsLevel1_t");
_Static_assert(sizeof(struct gpu_stats) == 248, "CUfilePerGpuStats_t");
_Static_assert(offsetof(struct level3, gpu_count) == 1024 && offsetof(struct level3, gpus) == 1032, "CUfileStatsLevel3_t");

/* What the parts share --------------------------------------------------------------------------------------------*/

enum way { POSIX, NVFS, P2P, MIXED };

struct cufile_settings {
    enum way mode;
    int version;
    int batch_max;
    int64_t delay_us;
    bool stats;
    unsigned batch_hang;      /* a batch of more entries never gets its staging buffers; 0: none */
    unsigned batch_stall;     /* the batch of this number never ends by itself; 0: none */
    unsigned reroute;         /* each so many direct I/Os one goes over another GPU; 0: none */
    size_t io_max;            /* of one call, which then is short; 0: none */
};

extern struct cufile_settings cufile_settings;
extern pthread_mutex_t cufile_lock;
extern struct level3 cufile_stats;
/* How often the driver was opened since it was last closed. */
extern long cufile_users;

/* Counts the call; gives the code that it must return, 0 for none. Below 5000 it is an errno. */
int cufile_enter(const char *call);
/* One transfer, as all calls do it: bytes, or a negated errno or code. */
ssize_t cufile_transfer(void *handle, char *base, size_t bytes, off_t offset, off_t base_offset, bool writes, enum way *way);
/* Counts one transfer of a GPU's; `moved` below 0: it failed. */
void cufile_count(int gpu, ssize_t moved, bool unaligned, bool writes, enum way way);

static inline struct status status(int code)
{
    return (struct status){code, 0};
}

/* Counts the call it stands in, and ends it where it is to fail. */
#define ENTER()                                \
    do {                                       \
        int refused_ = cufile_enter(__func__); \
        if (refused_)                          \
            return status(refused_);           \
    } while (0)

#endif
