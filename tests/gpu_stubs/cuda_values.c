/* Values in memory that streams wait for, and set. */
#define _GNU_SOURCE
#include "stub.h"
#include <stdlib.h>
#include <time.h>

struct value {
    uint32_t *at;
    uint32_t value;
};

/* Until the value is reached, cyclically, or the context ends. */
static void await_value(void *data, struct context *context)
{
    struct value v = *(struct value *)data;
    free(data);
    while (!context->sticky && (int32_t)(__atomic_load_n(v.at, __ATOMIC_ACQUIRE) - v.value) < 0)
        nanosleep(&(struct timespec){0, 20000}, NULL);
}

static void write_value(void *data, struct context *context)
{
    struct value v = *(struct value *)data;
    free(data);
    if (!context->sticky)
        __atomic_store_n(v.at, v.value, __ATOMIC_RELEASE);
}

static CUresult queue_value(void *stream, CUdeviceptr at, uint32_t value, void (*run)(void *, struct context *))
{
    struct stream *s = stub_stream_of(stream);
    if (!s)
        return INVALID_HANDLE;
    if (at % 4 || !stub_is_pinned((void *)at, 4, run == write_value))
        return INVALID_VALUE;
    struct value *v = malloc(sizeof *v);
    *v = (struct value){(uint32_t *)at, value};
    CUresult answer = stub_queue_at_once(s, run, v);
    if (!answer && run == await_value)
        stub_note_wait(s);
    return answer;
}

/* Only for a value that is at least the given one (CU_STREAM_WAIT_VALUE_GEQ), as Forebay waits. */
EXPORT CUresult cuStreamWaitValue32_v2(void *stream, CUdeviceptr at, uint32_t value, unsigned flags)
{
    ENTER(CONTEXT);
    return flags ? INVALID_VALUE : queue_value(stream, at, value, await_value);
}

EXPORT CUresult cuStreamWriteValue32_v2(void *stream, CUdeviceptr at, uint32_t value, unsigned flags)
{
    ENTER(CONTEXT);
    return flags ? INVALID_VALUE : queue_value(stream, at, value, write_value);
}
