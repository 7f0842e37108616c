/* Batches: entries are worked off by a thread, late, and each is reported once. */
#define _GNU_SOURCE
#include "cufile.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void stub_live(const char *name, int64_t by);

struct batch {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned room, out, ended, told; /* entries: that fit, submitted, ended, reported */
    struct batch_event *events;      /* in the order in which they ended */
    unsigned workers;
    bool cancelled;
};

struct submitted {
    struct batch *batch;
    unsigned count, number;
    struct batch_entry entries[];
};

EXPORT struct status cuFileBatchIOSetUp(void **handle, unsigned entries)
{
    ENTER();
    if (!entries || entries > (unsigned)cufile_settings.batch_max)
        return status(INVALID_VALUE_GIVEN);
    struct batch *b = calloc(1, sizeof *b);
    b->room = entries;
    b->events = calloc(entries, sizeof *b->events);
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
    stub_live("cufile_batches", 1);
    *handle = b;
    return status(DONE);
}

static void end(struct batch *b, const struct batch_entry *e, int how, ssize_t result)
{
    pthread_mutex_lock(&b->lock);
    b->events[b->ended++] = (struct batch_event){e->cookie, how, (size_t)result};
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

static void count_way(const bool *ways)
{
    struct level1 *s = &cufile_stats.basic;
    pthread_mutex_lock(&cufile_lock);
    struct counter *by = ways[POSIX] + ways[NVFS] + ways[P2P] > 1 ? &s->mixed_submits
                         : ways[NVFS]                             ? &s->nvfs_submits
                         : ways[P2P]                              ? &s->p2p_submits
                                                                  : &s->aio_submits;
    by->ok++;
    s->total_submits.ok++;
    pthread_mutex_unlock(&cufile_lock);
}

/* Returns when the batch is cancelled, or (after the delay) may go on. */
static bool wait_for_turn(struct batch *b, bool stalls)
{
    if (!stalls)
        usleep((useconds_t)cufile_settings.delay_us);
    pthread_mutex_lock(&b->lock);
    while (stalls && !b->cancelled)
        pthread_cond_wait(&b->changed, &b->lock);
    bool cancelled = b->cancelled;
    pthread_mutex_unlock(&b->lock);
    return cancelled;
}

static void *work_off(void *data)
{
    struct submitted *s = data;
    struct batch *b = s->batch;
    bool ways[3] = {false};
    bool stalls = cufile_settings.batch_stall && s->number == cufile_settings.batch_stall;
    /* Last first: nothing says that they end in the order in which they were given. */
    for (unsigned i = s->count; i-- > 0;) {
        const struct batch_entry *e = &s->entries[i];
        enum way way = POSIX;
        if (wait_for_turn(b, stalls)) {
            /* 1.15 never tells of what was cancelled while it was under way. */
            if (stalls)
                end(b, e, CANCELED, -ECANCELED);
            continue;
        }
        int code = cufile_enter("batch");
        ssize_t moved = code ? -code
                             : cufile_transfer(e->handle, e->base, e->bytes, e->file_offset, e->base_offset, e->opcode, &way);
        ways[way] = true;
        end(b, e, moved < 0 ? FAILED : COMPLETE, moved);
    }
    count_way(ways);
    free(s);
    pthread_mutex_lock(&b->lock);
    b->workers--;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

EXPORT struct status cuFileBatchIOSubmit(void *handle, unsigned count, struct batch_entry *entries, unsigned flags)
{
    static unsigned number;
    struct batch *b = handle;
    pthread_t thread;
    ENTER();
    if (!count || flags)
        return status(INVALID_VALUE_GIVEN);
    if (cufile_settings.mode == POSIX && cufile_settings.batch_hang && count > cufile_settings.batch_hang)
        for (;;)
            pause();
    pthread_mutex_lock(&b->lock);
    if (b->told == b->out) /* all of the last were reported: it is free again */
        b->out = b->ended = b->told = 0;
    bool full = b->out + count > b->room;
    if (!full) {
        b->out += count;
        b->workers++;
        b->cancelled = false;
    }
    pthread_mutex_unlock(&b->lock);
    if (full)
        return status(BATCH_FULL);
    struct submitted *s = malloc(sizeof *s + count * sizeof *entries);
    *s = (struct submitted){b, count, __atomic_add_fetch(&number, 1, __ATOMIC_RELAXED)};
    memcpy(s->entries, entries, count * sizeof *entries);
    pthread_mutex_lock(&cufile_lock);
    cufile_stats.basic.batch_submits.ok++;
    (cufile_settings.mode == POSIX ? &cufile_stats.basic.posix_enqueued : &cufile_stats.basic.enqueued)->ok += count;
    pthread_mutex_unlock(&cufile_lock);
    if (pthread_create(&thread, NULL, work_off, s))
        abort();
    pthread_detach(thread);
    return status(DONE);
}

static void wait_for(struct batch *b, unsigned at_least, const struct timespec *timeout)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    if (timeout) {
        until.tv_sec += timeout->tv_sec + (until.tv_nsec + timeout->tv_nsec) / 1000000000;
        until.tv_nsec = (until.tv_nsec + timeout->tv_nsec) % 1000000000;
    }
    int late = 0;
    while (b->ended - b->told < at_least && b->told < b->out && !late)
        late = timeout ? pthread_cond_timedwait(&b->changed, &b->lock, &until) : pthread_cond_wait(&b->changed, &b->lock);
}

/* `count`: room for events when called, events when it returns. */
EXPORT struct status cuFileBatchIOGetStatus(void *handle, unsigned at_least, unsigned *count, struct batch_event *events,
                                            struct timespec *timeout)
{
    struct batch *b = handle;
    ENTER();
    if (!count || !events || at_least > *count)
        return status(INVALID_VALUE_GIVEN);
    pthread_mutex_lock(&b->lock);
    wait_for(b, at_least, timeout);
    unsigned n = b->ended - b->told < *count ? b->ended - b->told : *count;
    memcpy(events, b->events + b->told, n * sizeof *events);
    b->told += n;
    *count = n;
    pthread_mutex_unlock(&b->lock);
    return status(DONE);
}

EXPORT struct status cuFileBatchIOCancel(void *handle)
{
    struct batch *b = handle;
    ENTER();
    pthread_mutex_lock(&b->lock);
    b->cancelled = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    return status(DONE);
}

EXPORT void cuFileBatchIODestroy(void *handle)
{
    struct batch *b = handle;
    cufile_enter(__func__);
    pthread_mutex_lock(&b->lock);
    while (b->workers)
        pthread_cond_wait(&b->changed, &b->lock);
    pthread_mutex_unlock(&b->lock);
    free(b->events);
    free(b);
    stub_live("cufile_batches", -1);
}
