/* Streams and events.
 *
 * Each stream is a thread that takes up what is queued for it no sooner than
 * `delay_us` after it was queued. A slot that is reused before its copy has
 * ended therefore delivers the wrong bytes, and is counted as well. */
#define _GNU_SOURCE
#include "stub.h"
#include <stdlib.h>
#include <time.h>

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
    uint64_t value_at; /* as many were queued with the last wait for a value */
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

/* Work on a stream that has ended, with its context, while a call was under way would never run, and be waited for. */
static CUresult queue_for(struct stream *s, int64_t due_us, void (*run)(void *, struct context *), void *data)
{
    struct work *w = malloc(sizeof *w);
    *w = (struct work){run, data, due_us, NULL};
    pthread_mutex_lock(&s->lock);
    bool destroyed = s->destroyed;
    if (!destroyed) {
        *s->last = w;
        s->last = &w->next;
        s->queued++;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    if (!destroyed)
        return OK;
    free(w);
    return s->context->sticky ? s->context->sticky : INVALID_HANDLE;
}

/* As `stub_queue`, of data that is freed where it can't be queued. */
static CUresult queue_or_free(struct stream *s, int64_t due_us, void (*run)(void *, struct context *), void *data)
{
    CUresult answer = queue_for(s, due_us, run, data);
    if (answer)
        free(data);
    return answer;
}

CUresult stub_queue(struct stream *s, void (*run)(void *, struct context *), void *data)
{
    return queue_or_free(s, stub_now_us() + settings.delay_us, run, data);
}

CUresult stub_queue_at_once(struct stream *s, void (*run)(void *, struct context *), void *data)
{
    return queue_or_free(s, 0, run, data);
}

bool stub_awaits_value(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    bool awaits = s->done < s->value_at;
    pthread_mutex_unlock(&s->lock);
    return awaits;
}

void stub_note_wait(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    s->value_at = s->queued;
    pthread_mutex_unlock(&s->lock);
}

CUresult stub_sticky(struct stream *s)
{
    return s->context->sticky;
}

static void wait_until(struct stream *s, uint64_t at)
{
    pthread_mutex_lock(&s->lock);
    while (s->done < at)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

void stub_wait_for_all(struct stream *s)
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
            stub_wait_for_all(s);
}

/* Once, though its context may end while it is destroyed. */
static void end_stream(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    bool first = !s->destroyed;
    s->destroyed = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (first && !s->is_null)
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
    struct context *current = stub_current();
    CUresult answer = OK;
    pthread_mutex_lock(&stub_lock);
    if (current->sticky == CONTEXT_IS_DESTROYED)
        answer = CONTEXT_IS_DESTROYED; /* since the call began */
    else if (!(*stream = make_stream(current, false)))
        answer = OUT_OF_MEMORY;
    else
        COUNT(streams, 1);
    pthread_mutex_unlock(&stub_lock);
    return answer;
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
    stub_wait_for_all(s);
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
    if (stub_current()->sticky == CONTEXT_IS_DESTROYED) { /* since the call began */
        pthread_mutex_unlock(&stub_lock);
        return CONTEXT_IS_DESTROYED;
    }
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
    if (!e->destroyed)
        COUNT(events, -1);
    e->destroyed = true;
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
    CUresult answer = queue_for(s, stub_now_us() + settings.delay_us, note_time, e);
    if (answer) {
        __atomic_sub_fetch(&e->waiters, 1, __ATOMIC_RELEASE);
        return answer;
    }
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
