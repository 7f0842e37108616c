/* Streams, events and copies.
 *
 * Each stream is a thread that takes up what is queued for it no sooner than
 * `delay_us` after it was queued. A slot that is reused before its copy has
 * ended therefore delivers the wrong bytes, and is counted as well. */
#define _GNU_SOURCE
#include "stub.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct work {
    void (*run)(void *, struct context *);
    void *data;
    int64_t due_us;
    struct work *next;
};

/* Never freed: an event may still name it. */
struct stream {
    struct context *context;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct work *first, **last;
    uint64_t queued, done;
    bool destroyed; /* no more work will come */
    bool is_null;
    struct stream *next;
};
static struct stream *streams;

struct event {
    struct stream *stream; /* NULL before it is recorded */
    uint64_t at;
    int64_t time_us;
    int device;
    bool destroyed;
    int waiters; /* works that name it */
    struct event *next;
};
static struct event *events;

static void sleep_until(int64_t due_us)
{
    int64_t left = due_us - stub_now_us();
    if (left > 0)
        nanosleep(&(struct timespec){left / 1000000, left % 1000000 * 1000}, NULL);
}

static void *work_off(void *data)
{
    struct stream *s = data;
    pthread_mutex_lock(&s->lock);
    while (s->first || !s->destroyed) {
        struct work *w = s->first;
        if (!w) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        sleep_until(w->due_us);
        w->run(w->data, s->context);
        pthread_mutex_lock(&s->lock);
        s->first = w->next;
        if (!s->first)
            s->last = &s->first;
        s->done++;
        free(w);
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* The global lock is held. */
static struct stream *make_stream(struct context *context, bool is_null)
{
    struct stream *s = calloc(1, sizeof *s);
    pthread_t thread;
    s->context = context;
    s->is_null = is_null;
    s->last = &s->first;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    if (pthread_create(&thread, NULL, work_off, s)) {
        free(s);
        return NULL;
    }
    pthread_detach(thread);
    s->next = streams;
    streams = s;
    return s;
}

/* A live stream of this handle: NULL, 1 and 2 are the default stream. The default stream doesn't wait for others here,
 * since all of Forebay's are made not to wait for it either. */
struct stream *stub_stream_of(void *handle)
{
    struct context *current = stub_current();
    struct stream *found = NULL;
    pthread_mutex_lock(&stub_lock);
    if ((uintptr_t)handle <= 2) {
        if (!current->null_stream)
            current->null_stream = make_stream(current, true);
        found = current->null_stream;
    } else {
        for (struct stream *s = streams; s && !found; s = s->next)
            if (s == handle && !s->destroyed)
                found = s;
    }
    pthread_mutex_unlock(&stub_lock);
    return found;
}

static CUresult queue_for(struct stream *s, int64_t due_us, void (*run)(void *, struct context *), void *data)
{
    struct work *w = malloc(sizeof *w);
    *w = (struct work){run, data, due_us, NULL};
    pthread_mutex_lock(&s->lock);
    *s->last = w;
    s->last = &w->next;
    s->queued++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return OK;
}

CUresult stub_queue(struct stream *s, void (*run)(void *, struct context *), void *data)
{
    return queue_for(s, stub_now_us() + settings.delay_us, run, data);
}

static void wait_until(struct stream *s, uint64_t at)
{
    pthread_mutex_lock(&s->lock);
    while (s->done < at)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

static void wait_for_all(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    uint64_t at = s->queued;
    pthread_mutex_unlock(&s->lock);
    wait_until(s, at);
}

void stub_drain(int device)
{
    pthread_mutex_lock(&stub_lock);
    struct stream *first = streams;
    pthread_mutex_unlock(&stub_lock);
    /* New ones are put in front, and none is freed. */
    for (struct stream *s = first; s; s = s->next)
        if (s->context->device == device)
            wait_for_all(s);
}

static void end_stream(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    s->destroyed = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (!s->is_null)
        COUNT(streams, -1);
}

void stub_forget_streams(int device)
{
    for (struct stream *s = streams; s; s = s->next)
        if (s->context->device == device && !s->destroyed)
            end_stream(s);
    for (struct event *e = events; e; e = e->next)
        if (e->device == device && !e->destroyed) {
            e->destroyed = true;
            COUNT(events, -1);
        }
}

EXPORT CUresult cuStreamCreate(void **stream, unsigned flags)
{
    ENTER(CONTEXT);
    if (flags > 1)
        return INVALID_VALUE;
    pthread_mutex_lock(&stub_lock);
    *stream = make_stream(stub_current(), false);
    pthread_mutex_unlock(&stub_lock);
    if (!*stream)
        return OUT_OF_MEMORY;
    COUNT(streams, 1);
    return OK;
}

EXPORT CUresult cuStreamCreateWithPriority(void **stream, unsigned flags, int priority)
{
    (void)priority;
    return cuStreamCreate(stream, flags);
}

/* What is queued still runs to its end. */
EXPORT CUresult cuStreamDestroy_v2(void *stream)
{
    ENTER(GIVING_BACK);
    struct stream *s = stub_stream_of(stream);
    if (!s || s->is_null)
        return INVALID_HANDLE;
    end_stream(s);
    return s->context->sticky;
}

EXPORT CUresult cuStreamSynchronize(void *stream)
{
    ENTER(CONTEXT);
    struct stream *s = stub_stream_of(stream);
    if (!s)
        return INVALID_HANDLE;
    wait_for_all(s);
    return s->context->sticky;
}

EXPORT CUresult cuStreamQuery(void *stream)
{
    ENTER(CONTEXT);
    struct stream *s = stub_stream_of(stream);
    if (!s)
        return INVALID_HANDLE;
    pthread_mutex_lock(&s->lock);
    bool done = s->done == s->queued;
    pthread_mutex_unlock(&s->lock);
    return done ? s->context->sticky : NOT_READY;
}

EXPORT CUresult cuStreamGetCtx(void *stream, void **context)
{
    ENTER(CONTEXT);
    struct stream *s = stub_stream_of(stream);
    if (!s)
        return INVALID_HANDLE;
    *context = s->context;
    return OK;
}

/* Events -------------------------------------------------------------------------------------------------------*/

static struct event *event_of(void *handle)
{
    struct event *found = NULL;
    pthread_mutex_lock(&stub_lock);
    for (struct event *e = events; e && !found; e = e->next)
        if (e == handle && !e->destroyed)
            found = e;
    pthread_mutex_unlock(&stub_lock);
    return found;
}

/* Takes the place of one that was destroyed and that nothing names, so that a long test doesn't grow. */
EXPORT CUresult cuEventCreate(void **event, unsigned flags)
{
    (void)flags;
    ENTER(CONTEXT);
    pthread_mutex_lock(&stub_lock);
    struct event *e = events;
    while (e && !(e->destroyed && !e->waiters))
        e = e->next;
    if (e) {
        *e = (struct event){.next = e->next};
    } else {
        e = calloc(1, sizeof *e);
        e->next = events;
        events = e;
    }
    e->device = stub_current()->device;
    COUNT(events, 1);
    pthread_mutex_unlock(&stub_lock);
    *event = e;
    return OK;
}

EXPORT CUresult cuEventDestroy_v2(void *event)
{
    ENTER(GIVING_BACK);
    struct event *e = event_of(event);
    if (!e)
        return INVALID_HANDLE;
    pthread_mutex_lock(&stub_lock);
    e->destroyed = true;
    COUNT(events, -1);
    pthread_mutex_unlock(&stub_lock);
    return stub_current()->sticky;
}

static void note_time(void *data, struct context *context)
{
    struct event *e = data;
    (void)context;
    e->time_us = stub_now_us();
    __atomic_sub_fetch(&e->waiters, 1, __ATOMIC_RELEASE);
}

EXPORT CUresult cuEventRecord(void *event, void *stream)
{
    ENTER(CONTEXT);
    struct event *e = event_of(event);
    struct stream *s = stub_stream_of(stream);
    if (!e || !s)
        return INVALID_HANDLE;
    __atomic_add_fetch(&e->waiters, 1, __ATOMIC_RELAXED);
    stub_queue(s, note_time, e);
    pthread_mutex_lock(&s->lock);
    e->stream = s;
    e->at = s->queued;
    pthread_mutex_unlock(&s->lock);
    return OK;
}

EXPORT CUresult cuEventQuery(void *event)
{
    ENTER(CONTEXT);
    struct event *e = event_of(event);
    if (!e)
        return INVALID_HANDLE;
    if (!e->stream)
        return OK;
    pthread_mutex_lock(&e->stream->lock);
    bool done = e->stream->done >= e->at;
    pthread_mutex_unlock(&e->stream->lock);
    return done ? e->stream->context->sticky : NOT_READY;
}

EXPORT CUresult cuEventSynchronize(void *event)
{
    ENTER(CONTEXT);
    struct event *e = event_of(event);
    if (!e)
        return INVALID_HANDLE;
    if (e->stream)
        wait_until(e->stream, e->at);
    return e->stream ? e->stream->context->sticky : OK;
}

EXPORT CUresult cuEventElapsedTime(float *ms, void *from, void *to)
{
    ENTER(CONTEXT);
    struct event *a = event_of(from), *b = event_of(to);
    if (!a || !b || !a->stream || !b->stream)
        return INVALID_HANDLE;
    *ms = (float)(b->time_us - a->time_us) / 1e3f;
    return OK;
}

EXPORT CUresult cuEventElapsedTime_v2(float *ms, void *from, void *to)
{
    return cuEventElapsedTime(ms, from, to);
}

struct wait {
    struct stream *stream;
    uint64_t at;
};

static void wait_on_stream(void *data, struct context *context)
{
    struct wait *w = data;
    (void)context;
    wait_until(w->stream, w->at);
    free(w);
}

EXPORT CUresult cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    (void)flags;
    ENTER(CONTEXT);
    struct event *e = event_of(event);
    struct stream *s = stub_stream_of(stream);
    if (!e || !s)
        return INVALID_HANDLE;
    if (!e->stream || e->stream == s)
        return OK;
    struct wait *w = malloc(sizeof *w);
    *w = (struct wait){e->stream, e->at};
    return stub_queue(s, wait_on_stream, w);
}

struct callback {
    void (*call)(void *);
    void *data;
};

static void call_back(void *data, struct context *context)
{
    struct callback c = *(struct callback *)data;
    (void)context;
    free(data);
    c.call(c.data);
}

EXPORT CUresult cuLaunchHostFunc(void *stream, void (*call)(void *), void *data)
{
    ENTER(CONTEXT);
    struct stream *s = stub_stream_of(stream);
    if (!s)
        return INVALID_HANDLE;
    struct callback *c = malloc(sizeof *c);
    *c = (struct callback){call, data};
    return stub_queue(s, call_back, c);
}

/* Copies -------------------------------------------------------------------------------------------------------*/

struct copy {
    CUdeviceptr to, from; /* host addresses where the device has none */
    size_t bytes;
    int to_device, from_device; /* -1: host */
    uint64_t sum;               /* of a host source when it was queued */
    bool pinned;
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

static void run_copy(void *data, struct context *context)
{
    struct copy c = *(struct copy *)data;
    free(data);
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
        /* Whoever hears of the context's end meanwhile has its memory back. */
        if (changed && context->sticky != CONTEXT_IS_DESTROYED)
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
    if (c.from_device < 0 && settings.hash && c.pinned) {
        char *now = malloc(c.bytes);
        read_pinned(now, (char *)c.from, c.bytes);
        c.sum = sum_of(now, c.bytes);
        free(now);
    }
    struct copy *kept = malloc(sizeof c);
    *kept = c;
    queue_for(s, c.pinned ? stub_now_us() + settings.delay_us : 0, run_copy, kept);
    if (!c.pinned) { /* nobody could tell it from a late one */
        COUNT(pageable_copies, 1);
        wait_for_all(s);
        return s->context->sticky;
    }
    return OK;
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
    return queue_copy((struct copy){to, (CUdeviceptr)from, bytes, device, -1, 0, false}, stream);
}

static CUresult to_host(void *to, CUdeviceptr from, size_t bytes, void *stream)
{
    if (!bytes)
        return OK;
    int device = device_of(from, bytes);
    if (device < 0 || !to)
        return outside();
    return queue_copy((struct copy){(CUdeviceptr)to, from, bytes, -1, device, 0, false}, stream);
}

static CUresult within(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *stream)
{
    if (!bytes)
        return OK;
    int a = device_of(to, bytes), b = device_of(from, bytes);
    if (a < 0 || b < 0)
        return outside();
    return queue_copy((struct copy){to, from, bytes, a, b, 0, false}, stream);
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
