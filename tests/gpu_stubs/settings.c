/* Settings from the environment, programmed failures, and the books at the end. */
#define _GNU_SOURCE
#include "stub.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CALLS_MAX 128
#define FAILURES_MAX 32

struct settings settings = {
    .gpus = 1,
    .memory_bytes = 1ul << 30,
    .pin_bytes = ~0ul,
    .delay_us = 50,
    .driver_version = 13000,
    .registers_read_only = true,
    .hash = true,
};
struct books books;
pthread_mutex_t stub_lock = PTHREAD_MUTEX_INITIALIZER;

struct failure {
    char call[48];
    uint64_t first, last;
    CUresult code;
};
static struct failure failures[FAILURES_MAX];
static int failure_count;

static struct {
    const char *name;
    uint64_t made;
} calls[CALLS_MAX];
static int call_count;

/* What else is alive, by name: other stand-ins count here. */
static struct {
    const char *name;
    int64_t count;
} live[16];

static bool initialised;
static pid_t owner;
static uint64_t context_calls;
static pthread_once_t read_once = PTHREAD_ONCE_INIT;

/* A scenario that is misspelt would test nothing. */
static void refuse(const char *what)
{
    fprintf(stderr, "FOREBAY_STUB_CUDA: can't make sense of '%s'\n", what);
    abort();
}

static uint64_t number(const char *text, char **end)
{
    uint64_t value = strtoull(text, end, 10);
    if (*end == text)
        refuse(text);
    switch (**end) {
    case 'k': value <<= 10; (*end)++; break;
    case 'm': value <<= 20; (*end)++; break;
    case 'g': value <<= 30; (*end)++; break;
    }
    return value;
}

/* CALL:NTH[+][:CODE] */
static void read_failure(const char *text)
{
    struct failure *f = &failures[failure_count++];
    const char *colon = strchr(text, ':');
    if (failure_count > FAILURES_MAX || !colon || (size_t)(colon - text) >= sizeof f->call)
        refuse(text);
    memcpy(f->call, text, (size_t)(colon - text));
    char *end;
    f->first = f->last = number(colon + 1, &end);
    if (*end == '+') {
        f->last = UINT64_MAX;
        end++;
    }
    f->code = UNKNOWN;
    if (*end == ':')
        f->code = (CUresult)number(end + 1, &end);
    if (*end)
        refuse(text);
}

static void read_setting(char *text)
{
    char *value = strchr(text, '='), *end = "";
    if (!value)
        refuse(text);
    *value++ = 0;
    if (!strcmp(text, "fail")) {
        read_failure(value);
        return;
    }
    uint64_t n = number(value, &end);
    if (*end)
        refuse(value);
    if (!strcmp(text, "gpus")) settings.gpus = n <= GPUS_MAX ? (int)n : GPUS_MAX;
    else if (!strcmp(text, "memory")) settings.memory_bytes = n;
    else if (!strcmp(text, "pin")) settings.pin_bytes = n;
    else if (!strcmp(text, "delay_us")) settings.delay_us = (int64_t)n;
    else if (!strcmp(text, "register_us")) settings.register_us_per_mib = (int64_t)n;
    else if (!strcmp(text, "version")) settings.driver_version = (int)n;
    else if (!strcmp(text, "init")) settings.init = (int)n;
    else if (!strcmp(text, "pageable")) settings.pageable = (int)n;
    else if (!strcmp(text, "read_only")) settings.registers_read_only = n != 0;
    else if (!strcmp(text, "dma_buf")) settings.dma_buf = n != 0;
    else if (!strcmp(text, "hash")) settings.hash = n != 0;
    else if (!strcmp(text, "destroyed")) settings.destroyed_after = n;
    else refuse(text);
}

static void read_settings(void)
{
    const char *given = getenv("FOREBAY_STUB_CUDA");
    owner = getpid();
    if (!given || !*given)
        return;
    char *text = strdup(given), *rest = NULL;
    for (char *one = strtok_r(text, ",", &rest); one; one = strtok_r(NULL, ",", &rest))
        read_setting(one);
    free(text);
}

int64_t stub_now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000ll + t.tv_nsec / 1000;
}

/* Counts it; the lock is held. */
static CUresult programmed(const char *call)
{
    int i = 0;
    while (i < call_count && strcmp(calls[i].name, call))
        i++;
    if (i == CALLS_MAX)
        abort();
    if (i == call_count)
        calls[call_count++].name = call;
    uint64_t nth = ++calls[i].made;
    for (i = 0; i < failure_count; i++)
        if (!strcmp(failures[i].call, call) && nth >= failures[i].first && nth <= failures[i].last)
            return failures[i].code;
    return OK;
}

static CUresult needed(enum need need)
{
    if (need == NOTHING)
        return OK;
    if (!initialised)
        return NOT_INITIALIZED;
    if (need == DRIVER)
        return OK;
    if (settings.destroyed_after && ++context_calls == settings.destroyed_after)
        for (int i = 0; i < settings.gpus; i++)
            stub_destroy_context(&stub_contexts[i]);
    struct context *current = stub_current();
    if (!current)
        return INVALID_CONTEXT;
    return need == CONTEXT || current->sticky == CONTEXT_IS_DESTROYED ? current->sticky : OK;
}

CUresult stub_enter(const char *call, enum need need)
{
    pthread_once(&read_once, read_settings);
    /* A child of a fork has the tables and none of the threads. */
    if (getpid() != owner)
        return NOT_INITIALIZED;
    pthread_mutex_lock(&stub_lock);
    CUresult answer = programmed(call);
    if (!answer)
        answer = needed(need);
    pthread_mutex_unlock(&stub_lock);
    return answer;
}

CUresult stub_execute(const char *what)
{
    pthread_mutex_lock(&stub_lock);
    CUresult answer = programmed(what);
    pthread_mutex_unlock(&stub_lock);
    return answer;
}

EXPORT CUresult cuInit(unsigned flags)
{
    ENTER(NOTHING);
    if (flags)
        return INVALID_VALUE;
    if (settings.init)
        return settings.init;
    if (settings.gpus == 0)
        return NO_DEVICE;
    initialised = true;
    return OK;
}

/* The books ----------------------------------------------------------------------------------------------------*/

static void print_gpus(FILE *out, const char *name, const int64_t *bytes)
{
    fprintf(out, "\"%s\": [", name);
    for (int i = 0; i < settings.gpus; i++)
        fprintf(out, "%s%lld", i ? ", " : "", (long long)bytes[i]);
    fprintf(out, "], ");
}

static void print_books(FILE *out)
{
#define FIELD(name) fprintf(out, "\"" #name "\": %lld", (long long)books.name)
#define COMMA fputs(", ", out)
    fputs("{\"live\": {", out);
    FIELD(allocations); COMMA; FIELD(allocated_bytes); COMMA; FIELD(registrations); COMMA; FIELD(registered_bytes);
    COMMA; FIELD(streams); COMMA; FIELD(events); COMMA; FIELD(modules);
    for (int i = 0; i < 16 && live[i].name; i++)
        fprintf(out, ", \"%s\": %lld", live[i].name, (long long)live[i].count);
    fputs("}, ", out);
    FIELD(allocated_bytes_max); COMMA; FIELD(registered_bytes_max); COMMA; FIELD(copies_outside); COMMA;
    FIELD(changed_under_copy); COMMA; FIELD(stale_reads); COMMA; FIELD(unknown_frees); COMMA; FIELD(pageable_copies);
    COMMA; FIELD(launches); COMMA;
    print_gpus(out, "to_device_bytes", books.to_device_bytes);
    print_gpus(out, "to_host_bytes", books.to_host_bytes);
    print_gpus(out, "to_device_sum", books.to_device_sum);
    print_gpus(out, "cufile_bytes", books.cufile_bytes);
    fputs("\"calls\": {", out);
    for (int i = 0; i < call_count; i++)
        fprintf(out, "%s\"%s\": %llu", i ? ", " : "", calls[i].name, (unsigned long long)calls[i].made);
    fputs("}}\n", out);
}

void stub_came(int device, const void *at, size_t bytes)
{
    const unsigned char *byte = at;
    int64_t sum = 0;
    for (size_t i = 0; i < bytes; i++)
        sum += byte[i];
    COUNT(to_device_sum[device], sum);
}

/* As stub_came, for what cuFile brought. */
EXPORT void stub_cufile_came(int device, const void *at, size_t bytes)
{
    COUNT(cufile_bytes[device], (int64_t)bytes);
    stub_came(device, at, bytes);
}

EXPORT void stub_live(const char *name, int64_t by)
{
    int i = 0;
    pthread_mutex_lock(&stub_lock);
    while (i < 15 && live[i].name && strcmp(live[i].name, name))
        i++;
    live[i].name = name;
    live[i].count += by;
    pthread_mutex_unlock(&stub_lock);
}

/* The books so far as JSON, ended by a zero; gives the length it has, as snprintf does. */
EXPORT size_t forebay_stub_ledger(char *text, size_t bytes)
{
    char *all = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&all, &length);
    pthread_mutex_lock(&stub_lock);
    print_books(out);
    pthread_mutex_unlock(&stub_lock);
    fclose(out);
    if (bytes) {
        size_t n = length < bytes - 1 ? length : bytes - 1;
        memcpy(text, all, n);
        text[n] = 0;
    }
    free(all);
    return length;
}

/* FOREBAY_STUB_LEDGER names a file, or (ending with a slash) a folder that gets a PID.json of each process. */
__attribute__((destructor)) static void keep_books(void)
{
    const char *name = getenv("FOREBAY_STUB_LEDGER");
    if (!name || !*name || getpid() != owner)
        return;
    char path[4096];
    bool folder = name[strlen(name) - 1] == '/';
    snprintf(path, sizeof path, folder ? "%s%d.json" : "%s", name, (int)getpid());
    FILE *out = fopen(path, "w");
    if (!out)
        return;
    pthread_mutex_lock(&stub_lock);
    print_books(out);
    pthread_mutex_unlock(&stub_lock);
    fclose(out);
}
