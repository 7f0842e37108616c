/* What the parts of the libcuda stand-in share.
 *
 * The stand-in has the driver API's symbols and behaves as the driver does where
 * Forebay relies on it: streams work late and beside each other, a copy from
 * pinned memory reads its source when it is executed and not when it is queued,
 * and every call can be made to fail. settings.c and CONTRIBUTING.md say how to ask for it. */
#ifndef FOREBAY_STUB_H
#define FOREBAY_STUB_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

/* CUresult: the codes that the stand-in gives by itself. */
enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    CONTEXT_IS_DESTROYED = 709,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    LAUNCH_FAILED = 719,
    NOT_SUPPORTED = 801,
    UNKNOWN = 999,
};

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;

#define GPUS_MAX 16

/* Settings -----------------------------------------------------------------------------------------------------*/

struct settings {
    int gpus;
    size_t memory_bytes;     /* of each GPU */
    size_t pin_bytes;        /* that cuMemHostRegister grants in all */
    int64_t delay_us;        /* between queueing and execution */
    int64_t register_us_per_mib; /* that cuMemHostRegister takes */
    int driver_version;      /* 13000 is 13.0 */
    int init;                /* what cuInit answers */
    bool registers_read_only;
    bool dma_buf;            /* exports memory to other devices */
    int pageable; /* reads memory that nobody registered: 1 by HMM, 2 by the host's page tables */
    bool hash;               /* look whether a copy's source changes while the copy is queued */
    uint64_t destroyed_after; /* calls until the contexts are destroyed; 0: never */
};

extern struct settings settings;

/* What a call needs before it may go on. One that gives something back does so even after an error on the device, and
 * returns that error: what is still in the books then was never given back. */
enum need { NOTHING, DRIVER, CONTEXT, GIVING_BACK };

/* Counts the call, and gives the error that it must return, 0 for none. */
CUresult stub_enter(const char *call, enum need need);
/* As stub_enter for work on the device: `copy`, `set`, `launch`. */
CUresult stub_execute(const char *what);

#define ENTER(need)                                      \
    do {                                                 \
        CUresult refused_ = stub_enter(__func__, need);  \
        if (refused_)                                    \
            return refused_;                             \
    } while (0)

/* One lock for all tables: nothing here is meant to be fast. Work on the device runs outside of it. */
extern pthread_mutex_t stub_lock;

int64_t stub_now_us(void);

/* Contexts -----------------------------------------------------------------------------------------------------*/

struct context {
    int device;
    bool retained;
    CUresult sticky; /* an error on the device, which every later call returns */
    struct stream *null_stream;
};

extern struct context stub_contexts[GPUS_MAX];
/* The calling thread's; NULL for none. */
struct context *stub_current(void);
/* An error on the device: the first one stays, and none is seen behind the context's end. */
void stub_break(struct context *context, CUresult failed);
/* Something is given back that isn't there: a fault of the caller's, unless its context has ended meanwhile. The lock is held. */
CUresult stub_unknown(CUresult answer);
/* Ends a context: all that was made in it is gone. The lock is held. */
void stub_destroy_context(struct context *context);

/* Memory -------------------------------------------------------------------------------------------------------*/

/* Where the stand-in finds device memory from `at` on; NULL unless all of it is in one allocation. */
void *stub_alias(CUdeviceptr at, size_t bytes);
/* Lets kernels dereference device addresses; pairs nest. */
void stub_open_memory(void);
void stub_close_memory(void);
/* Whether all of it is pinned, for reading or for writing. */
bool stub_is_pinned(const void *at, size_t bytes, bool for_write);
bool stub_crosses_registrations(const void *at, size_t bytes);
/* The device that an address belongs to; -1 for none. */
int stub_device_of(CUdeviceptr at);
void stub_forget_memory(int device);

/* Streams ------------------------------------------------------------------------------------------------------*/

struct stream;
struct stream *stub_stream_of(void *handle);
/* Waits until the device has nothing left to do. */
void stub_drain(int device);
void stub_forget_streams(int device);
/* Queues `run(data)` for the stream; it is called when all before it has ended, and frees what is its own. Where the stream
 * has ended, `data` is freed and an error comes back. */
CUresult stub_queue(struct stream *stream, void (*run)(void *, struct context *), void *data);
/* The same without the delay of the settings. */
CUresult stub_queue_at_once(struct stream *stream, void (*run)(void *, struct context *), void *data);
void stub_wait_for_all(struct stream *stream);
/* What is queued for it now runs after a wait for a value that isn't there yet. */
bool stub_awaits_value(struct stream *stream);
/* The last work that was queued is such a wait. */
void stub_note_wait(struct stream *stream);
/* The error that the stream's context answers with from now on. */
CUresult stub_sticky(struct stream *stream);

void stub_forget_modules(int device);

/* Books --------------------------------------------------------------------------------------------------------*/

struct books {
    int64_t allocations, allocated_bytes, registrations, registered_bytes, streams, events, modules;
    int64_t allocated_bytes_max, registered_bytes_max;
    int64_t copies_outside;      /* refused: not inside one allocation */
    int64_t changed_under_copy;  /* the source changed between queueing and execution */
    int64_t stale_reads;         /* copies of pinned pages that their file had lost */
    int64_t unknown_frees;
    int64_t pageable_copies;     /* from or to memory that isn't pinned: these wait */
    int64_t to_device_bytes[GPUS_MAX], to_host_bytes[GPUS_MAX];
    int64_t to_device_sum[GPUS_MAX]; /* of the bytes that came, cuFile's too */
    int64_t cufile_bytes[GPUS_MAX];  /* that cuFile brought */
    int64_t launches;
};

extern struct books books;
/* Bytes that came to a device: whatever their order, their sum says whether they are the right ones. */
void stub_came(int device, const void *at, size_t bytes);
#define COUNT(field, by) __atomic_add_fetch(&books.field, (by), __ATOMIC_RELAXED)

#endif
