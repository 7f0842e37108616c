/* Copies and fills, which run on their stream's thread. */
#define _GNU_SOURCE
#include "stub.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct copy {
    CUdeviceptr to, from; /* host addresses where the device has none */
    size_t bytes;
    int to_device, from_device; /* -1: host */
    uint64_t sum;               /* of a host source when it was queued */
    bool pinned;
    bool early;                 /* queued before its bytes were there: behind a wait for a value */
};

static uint64_t sum_of(const void *at, size_t bytes)
{
    const unsigned char *b = at;
    uint64_t sum = bytes, word;
    for (; bytes >= 8; b += 8, bytes -= 8) {
        memcpy(&word, b, 8);
        sum = (sum ^ word) * 0x9E3779B97F4A7C15u;
        sum ^= sum >> 29;
    }
    for (; bytes; b++, bytes--)
        sum = (sum ^ *b) * 0x100000001B3u;
    return sum;
}

/* A GPU goes on reading the pages that were pinned, though their file was cut short since. The host can't reach those
 * any more (it would be killed), so a pattern that no test writes stands for them. */
#define STALE 0x5A

static void read_pinned(char *to, const char *from, size_t bytes)
{
    while (bytes) {
        ssize_t n = process_vm_readv(getpid(), &(struct iovec){to, bytes}, 1, &(struct iovec){(void *)from, bytes}, 1, 0);
        if (n < 0 && errno != EFAULT) {
            memcpy(to, from, bytes); /* the system forbids the call */
            return;
        }
        if (n <= 0) {
            size_t page = 4096 - (uintptr_t)from % 4096;
            n = (ssize_t)(page < bytes ? page : bytes);
            memset(to, STALE, (size_t)n);
            COUNT(stale_reads, 1);
        }
        to += n;
        from += n;
        bytes -= (size_t)n;
    }
}

static uint64_t sum_of_source(const struct copy *c)
{
    char *now = malloc(c->bytes);
    read_pinned(now, (char *)c->from, c->bytes);
    uint64_t sum = sum_of(now, c->bytes);
    free(now);
    return sum;
}

static void run_copy(void *data, struct context *context)
{
    struct copy c = *(struct copy *)data;
    free(data);
    if (c.early) { /* from now on its source stays as it is */
        c.sum = sum_of_source(&c);
        nanosleep(&(struct timespec){settings.delay_us / 1000000, settings.delay_us % 1000000 * 1000}, NULL);
    }
    CUresult failed = context->sticky ? context->sticky : stub_execute("copy");
    char *to = c.to_device < 0 ? (char *)c.to : stub_alias(c.to, c.bytes);
    char *from = c.from_device < 0 ? (char *)c.from : stub_alias(c.from, c.bytes);
    if (!failed && (!to || !from))
        failed = ILLEGAL_ADDRESS; /* freed since */
    if (failed) {
        stub_break(context, failed);
        return;
    }
    if (c.from_device >= 0) {
        memcpy(to, from, c.bytes);
    } else {
        read_pinned(to, from, c.bytes);
        bool changed = settings.hash && c.pinned && sum_of(to, c.bytes) != c.sum;
        /* Whoever hears of the context's end meanwhile, by whichever error, has its memory back: nobody can look at what
           arrives in a context that is over. */
        if (changed && !context->sticky)
            COUNT(changed_under_copy, 1);
    }
    if (c.from_device < 0) {
        COUNT(to_device_bytes[c.to_device], (int64_t)c.bytes);
        stub_came(c.to_device, to, c.bytes);
    } else if (c.to_device < 0)
        COUNT(to_host_bytes[c.from_device], (int64_t)c.bytes);
}

/* Both ends were checked; a host end that isn't pinned makes the call wait, as the driver's staging does. */
static CUresult queue_copy(struct copy c, void *stream)
{
    struct stream *s = stub_stream_of(stream);
    if (!s)
        return INVALID_HANDLE;
    bool host = c.to_device < 0 || c.from_device < 0;
    c.pinned = !host || stub_is_pinned((void *)(c.to_device < 0 ? c.to : c.from), c.bytes, c.to_device < 0);
    if (host && c.pinned && stub_crosses_registrations((void *)(c.to_device < 0 ? c.to : c.from), c.bytes))
        return INVALID_VALUE;
    if (c.from_device < 0 && settings.hash && c.pinned) {
        c.early = stub_awaits_value(s);
        c.sum = c.early ? 0 : sum_of_source(&c);
    }
    struct copy *kept = malloc(sizeof c);
    *kept = c;
    CUresult answer = (c.pinned ? stub_queue : stub_queue_at_once)(s, run_copy, kept);
    if (!answer && !c.pinned) { /* nobody could tell it from a late one */
        COUNT(pageable_copies, 1);
        stub_wait_for_all(s);
        return stub_sticky(s);
    }
    return answer;
}

/* The device whose allocation holds all of it; -1 where none does, which is counted unless the context has ended meanwhile. */
static int device_of(CUdeviceptr at, size_t bytes)
{
    if (stub_alias(at, bytes))
        return stub_device_of(at);
    if (stub_current()->sticky != CONTEXT_IS_DESTROYED)
        COUNT(copies_outside, 1);
    return -1;
}

static CUresult outside(void)
{
    return stub_current()->sticky == CONTEXT_IS_DESTROYED ? CONTEXT_IS_DESTROYED : INVALID_VALUE;
}

static CUresult to_device(CUdeviceptr to, const void *from, size_t bytes, void *stream)
{
    if (!bytes)
        return OK;
    int device = device_of(to, bytes);
    if (device < 0 || !from)
        return outside();
    return queue_copy((struct copy){to, (CUdeviceptr)from, bytes, device, -1, 0, false, false}, stream);
}

static CUresult to_host(void *to, CUdeviceptr from, size_t bytes, void *stream)
{
    if (!bytes)
        return OK;
    int device = device_of(from, bytes);
    if (device < 0 || !to)
        return outside();
    return queue_copy((struct copy){(CUdeviceptr)to, from, bytes, -1, device, 0, false, false}, stream);
}

static CUresult within(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *stream)
{
    if (!bytes)
        return OK;
    int a = device_of(to, bytes), b = device_of(from, bytes);
    if (a < 0 || b < 0)
        return outside();
    return queue_copy((struct copy){to, from, bytes, a, b, 0, false, false}, stream);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, void *stream)
{
    ENTER(CONTEXT);
    return to_device(to, from, bytes, stream);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, void *stream)
{
    ENTER(CONTEXT);
    return to_host(to, from, bytes, stream);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *stream)
{
    ENTER(CONTEXT);
    return within(to, from, bytes, stream);
}

/* By address: which end is the device's is looked up. */
static CUresult any(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *stream)
{
    bool device_to = stub_device_of(to) >= 0, device_from = stub_device_of(from) >= 0;
    if (device_to && device_from)
        return within(to, from, bytes, stream);
    return device_from ? to_host((void *)to, from, bytes, stream) : to_device(to, (void *)from, bytes, stream);
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *stream)
{
    ENTER(CONTEXT);
    return any(to, from, bytes, stream);
}

static CUresult batch(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, void *stream)
{
    if (!count || (uintptr_t)stream <= 2) /* the default stream isn't taken */
        return INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        CUresult r = any(to[i], from[i], bytes[i], stream);
        if (r)
            return r;
    }
    return OK;
}

/* CUDA 13's. `attributes` say how sources may be read, `indexes` from which copy on each holds. */
EXPORT CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, void *attributes,
                                      size_t *indexes, size_t attribute_count, void *stream)
{
    ENTER(CONTEXT);
    if (!attributes || !indexes || !attribute_count || attribute_count > count || indexes[0] != 0)
        return INVALID_VALUE;
    return batch(to, from, bytes, count, stream);
}

/* CUDA 12.8's, which says as well which copy failed. */
EXPORT CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, void *attributes,
                                   size_t *indexes, size_t attribute_count, size_t *failed, void *stream)
{
    ENTER(CONTEXT);
    if (!attributes || !indexes || !attribute_count || attribute_count > count || indexes[0] != 0)
        return INVALID_VALUE;
    if (failed)
        *failed = SIZE_MAX;
    return batch(to, from, bytes, count, stream);
}

struct fill {
    CUdeviceptr at;
    size_t bytes;
    unsigned char value;
};

static void run_fill(void *data, struct context *context)
{
    struct fill f = *(struct fill *)data;
    free(data);
    CUresult failed = context->sticky ? context->sticky : stub_execute("set");
    void *at = stub_alias(f.at, f.bytes);
    if (failed || !at)
        stub_break(context, failed ? failed : ILLEGAL_ADDRESS);
    else
        memset(at, f.value, f.bytes);
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t bytes, void *stream)
{
    ENTER(CONTEXT);
    struct stream *s = stub_stream_of(stream);
    if (!s)
        return INVALID_HANDLE;
    if (!bytes)
        return OK;
    if (device_of(at, bytes) < 0)
        return outside();
    struct fill *f = malloc(sizeof *f);
    *f = (struct fill){at, bytes, value};
    return stub_queue(s, run_fill, f);
}
