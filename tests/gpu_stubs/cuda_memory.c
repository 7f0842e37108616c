/* Device memory, and host memory that is pinned.
 *
 * Each GPU's memory is a file in memory, mapped twice: at the addresses that
 * callers get, where nothing may touch it (so that a host pointer and a device
 * pointer mixed up crash the test instead of passing it), and at an alias that
 * only the stand-in's copies know. While a kernel runs, the first mapping opens,
 * since kernels dereference what they are given. */
#define _GNU_SOURCE
#include "stub.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Between allocations, so that a copy over an end is no copy into a neighbour. */
#define GAP (64ul << 10)
#define ALIGN 512ul
/* Of what has at least a page of the GPU's. */
#define PAGE (64ul << 10)
#define FIRST_ADDRESS 0x700000000000ul
/* Addresses aren't used again at once: a pointer that outlives its memory is seen. */
#define SPACE_FACTOR 4
#define UNTOUCHED 0xDB
#define POISON_BYTES_MAX (16ul << 20)

struct allocation {
    CUdeviceptr at;
    size_t bytes;
    struct allocation *next; /* by address */
};

static struct {
    char *at, *alias;
    size_t space;
    size_t used;
    CUdeviceptr search_from;
    struct allocation *first;
} memories[GPUS_MAX];
static int open_count;

void *stub_alias(CUdeviceptr at, size_t bytes);

struct registration {
    char *at;
    size_t bytes;
    bool read_only;
    int device;
    struct registration *next;
};
static struct registration *registrations;

/* The lock is held. */
static bool make_memory(int device)
{
    if (memories[device].at)
        return true;
    size_t space = settings.memory_bytes * SPACE_FACTOR + (64ul << 20);
    int fd = memfd_create("stub-gpu", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)space))
        return false;
    void *wanted = (void *)(FIRST_ADDRESS + (uint64_t)device * (1ul << 40));
    int flags = MAP_SHARED | MAP_NORESERVE;
    char *at = mmap(wanted, space, PROT_NONE, flags | MAP_FIXED_NOREPLACE, fd, 0);
    char *alias = mmap(NULL, space, PROT_READ | PROT_WRITE, flags, fd, 0);
    close(fd);
    if (at == MAP_FAILED || alias == MAP_FAILED)
        return false;
    if (open_count)
        mprotect(at, space, PROT_READ | PROT_WRITE);
    memories[device].at = at;
    memories[device].alias = alias;
    memories[device].space = space;
    memories[device].search_from = (CUdeviceptr)at;
    return true;
}

/* Links a new allocation behind `after` (NULL: first) if it fits there, at `from` or later. */
static struct allocation *fit(int device, struct allocation *after, CUdeviceptr from, size_t bytes)
{
    CUdeviceptr end = (CUdeviceptr)memories[device].at + memories[device].space;
    struct allocation *next = after ? after->next : memories[device].first;
    CUdeviceptr at = after ? after->at + after->bytes + GAP : (CUdeviceptr)memories[device].at;
    at = at < from ? from : at;
    size_t align = bytes < PAGE ? ALIGN : PAGE;
    at = (at + align - 1) / align * align;
    if (at + bytes + GAP > (next ? next->at : end))
        return NULL;
    struct allocation *a = malloc(sizeof *a);
    *a = (struct allocation){.at = at, .bytes = bytes, .next = next};
    if (after)
        after->next = a;
    else
        memories[device].first = a;
    return a;
}

static struct allocation *allocate(int device, size_t bytes)
{
    CUdeviceptr from[2] = {memories[device].search_from, (CUdeviceptr)memories[device].at};
    for (int turn = 0; turn < 2; turn++) {
        struct allocation *a = fit(device, NULL, from[turn], bytes);
        for (struct allocation *after = memories[device].first; !a && after; after = after->next)
            a = fit(device, after, from[turn], bytes);
        if (a) {
            memories[device].search_from = a->at + a->bytes + GAP;
            return a;
        }
    }
    return NULL;
}

static void note_peak(int64_t now, int64_t *peak)
{
    if (now > *peak)
        *peak = now;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t bytes)
{
    ENTER(CONTEXT);
    int device = stub_current()->device;
    if (!bytes)
        return INVALID_VALUE;
    pthread_mutex_lock(&stub_lock);
    struct allocation *a = NULL;
    if (make_memory(device) && bytes <= settings.memory_bytes - memories[device].used)
        a = allocate(device, bytes);
    if (a) {
        memories[device].used += bytes;
        COUNT(allocations, 1);
        note_peak(COUNT(allocated_bytes, (int64_t)bytes), &books.allocated_bytes_max);
        char *alias = memories[device].alias + (a->at - (CUdeviceptr)memories[device].at);
        memset(alias, UNTOUCHED, bytes < POISON_BYTES_MAX ? bytes : POISON_BYTES_MAX);
        *at = a->at;
    }
    pthread_mutex_unlock(&stub_lock);
    return a ? OK : OUT_OF_MEMORY;
}

static int device_in(CUdeviceptr at)
{
    for (int i = 0; i < GPUS_MAX; i++) {
        CUdeviceptr from = (CUdeviceptr)memories[i].at;
        if (from && at >= from && at < from + memories[i].space)
            return i;
    }
    return -1;
}

/* The place that holds the allocation `at` lies in. The lock is held. */
static struct allocation **place_of(int device, CUdeviceptr at)
{
    struct allocation **place = &memories[device].first;
    while (*place && (at < (*place)->at || at >= (*place)->at + (*place)->bytes))
        place = &(*place)->next;
    return *place ? place : NULL;
}

static void give_back(int device, struct allocation **place)
{
    struct allocation *a = *place;
    memories[device].used -= a->bytes;
    COUNT(allocations, -1);
    COUNT(allocated_bytes, -(int64_t)a->bytes);
    /* Whole pages go back to the host. */
    char *alias = memories[device].alias + (a->at - (CUdeviceptr)memories[device].at);
    char *from = (char *)(((uintptr_t)alias + 4095) & ~4095ul);
    char *to = (char *)(((uintptr_t)alias + a->bytes) & ~4095ul);
    if (to > from)
        madvise(from, (size_t)(to - from), MADV_REMOVE);
    *place = a->next;
    free(a);
}

/* Waits for the device, as the driver does. */
EXPORT CUresult cuMemFree_v2(CUdeviceptr at)
{
    ENTER(GIVING_BACK);
    if (!at)
        return OK;
    stub_drain(stub_current()->device);
    pthread_mutex_lock(&stub_lock);
    int device = device_in(at);
    struct allocation **place = device < 0 ? NULL : place_of(device, at);
    bool ours = place && (*place)->at == at;
    CUresult answer;
    if (ours) {
        give_back(device, place);
        answer = stub_current()->sticky;
    } else {
        answer = stub_unknown(INVALID_VALUE);
    }
    pthread_mutex_unlock(&stub_lock);
    return answer;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    ENTER(CONTEXT);
    *total = settings.memory_bytes;
    *free_bytes = settings.memory_bytes - memories[stub_current()->device].used;
    return OK;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr at)
{
    ENTER(CONTEXT);
    pthread_mutex_lock(&stub_lock);
    int device = device_in(at);
    struct allocation **place = device < 0 ? NULL : place_of(device, at);
    if (place && base)
        *base = (*place)->at;
    if (place && bytes)
        *bytes = (*place)->bytes;
    pthread_mutex_unlock(&stub_lock);
    return place ? OK : NOT_FOUND;
}

/* The dma-buf is a file that says where the memory is: tests/rdma_stubs/dma_buf.c reads it. */
EXPORT CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr at, size_t bytes, int kind, unsigned long long flags)
{
    ENTER(CONTEXT);
    if (!settings.dma_buf)
        return NOT_SUPPORTED;
    if (kind != 1 || flags || !bytes || at % 4096 || bytes % 4096)
        return INVALID_VALUE;
    uint64_t place[2] = {(uint64_t)(uintptr_t)stub_alias(at, bytes), bytes};
    if (!place[0])
        return INVALID_VALUE;
    int fd = memfd_create("stub-dma-buf", MFD_CLOEXEC);
    if (fd < 0 || write(fd, place, sizeof place) != sizeof place)
        return UNKNOWN;
    *(int *)handle = fd;
    return OK;
}

/* Exported: the libcufile stand-in writes into device memory by it. */
EXPORT void *stub_alias(CUdeviceptr at, size_t bytes)
{
    pthread_mutex_lock(&stub_lock);
    int device = device_in(at);
    struct allocation **place = device < 0 ? NULL : place_of(device, at);
    char *alias = NULL;
    if (place && bytes <= (*place)->bytes && at - (*place)->at <= (*place)->bytes - bytes)
        alias = memories[device].alias + (at - (CUdeviceptr)memories[device].at);
    pthread_mutex_unlock(&stub_lock);
    return alias;
}

EXPORT int stub_device_of(CUdeviceptr at)
{
    pthread_mutex_lock(&stub_lock);
    int device = device_in(at);
    bool live = device >= 0 && place_of(device, at);
    pthread_mutex_unlock(&stub_lock);
    return live ? device : -1;
}

static void protect(int how)
{
    for (int i = 0; i < GPUS_MAX; i++)
        if (memories[i].at)
            mprotect(memories[i].at, memories[i].space, how);
}

void stub_open_memory(void)
{
    pthread_mutex_lock(&stub_lock);
    if (open_count++ == 0)
        protect(PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&stub_lock);
}

void stub_close_memory(void)
{
    pthread_mutex_lock(&stub_lock);
    if (--open_count == 0)
        protect(PROT_NONE);
    pthread_mutex_unlock(&stub_lock);
}

/* Pinned host memory -------------------------------------------------------------------------------------------*/

/* Whether every page is mapped and has the permission, by /proc/self/maps. */
static bool is_mapped(const char *at, size_t bytes, bool writable)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char *line = NULL;
    size_t room = 0;
    uintptr_t next = (uintptr_t)at, end = next + bytes;
    while (maps && next < end && getline(&line, &room, maps) > 0) {
        unsigned long from, to;
        char mode[5];
        if (sscanf(line, "%lx-%lx %4s", &from, &to, mode) != 3 || to <= next)
            continue;
        if (from > next || mode[0] != 'r' || (writable && mode[1] != 'w'))
            break;
        next = to;
    }
    free(line);
    if (maps)
        fclose(maps);
    return next >= end;
}

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

/* Whether the pages are there: a mapping may reach behind its file's end, and touching that kills. */
static bool is_present(char *at, size_t bytes)
{
    uintptr_t from = (uintptr_t)at & ~4095ul, to = ((uintptr_t)at + bytes + 4095) & ~4095ul;
    return madvise((void *)from, to - from, MADV_POPULATE_READ) == 0;
}

static CUresult can_register(char *at, size_t bytes, bool read_only)
{
    if (!at || !bytes || (uintptr_t)at + bytes < (uintptr_t)at)
        return INVALID_VALUE;
    if (read_only && !settings.registers_read_only)
        return NOT_SUPPORTED;
    return is_mapped(at, bytes, !read_only) && is_present(at, bytes) ? OK : INVALID_VALUE;
}

EXPORT CUresult cuMemHostRegister_v2(void *start, size_t bytes, unsigned flags)
{
    enum { READ_ONLY = 8 };
    ENTER(CONTEXT);
    char *at = start;
    CUresult answer = can_register(at, bytes, flags & READ_ONLY);
    if (answer)
        return answer;
    int64_t takes_us = settings.register_us_per_mib * (int64_t)(bytes >> 20);
    nanosleep(&(struct timespec){takes_us / 1000000, takes_us % 1000000 * 1000}, NULL);
    pthread_mutex_lock(&stub_lock);
    if (stub_current()->sticky == CONTEXT_IS_DESTROYED)
        answer = CONTEXT_IS_DESTROYED; /* since the call began */
    for (struct registration *r = registrations; !answer && r; r = r->next)
        if (at < r->at + r->bytes && r->at < at + bytes)
            answer = HOST_MEMORY_ALREADY_REGISTERED;
    if (!answer && bytes > settings.pin_bytes - (size_t)books.registered_bytes)
        answer = OUT_OF_MEMORY;
    if (!answer) {
        struct registration *r = malloc(sizeof *r);
        *r = (struct registration){at, bytes, flags & READ_ONLY, stub_current()->device, registrations};
        registrations = r;
        COUNT(registrations, 1);
        note_peak(COUNT(registered_bytes, (int64_t)bytes), &books.registered_bytes_max);
    }
    pthread_mutex_unlock(&stub_lock);
    return answer;
}

static void unpin(struct registration **place)
{
    struct registration *r = *place;
    COUNT(registrations, -1);
    COUNT(registered_bytes, -(int64_t)r->bytes);
    *place = r->next;
    free(r);
}

/* Waits for the device, as the driver does. */
EXPORT CUresult cuMemHostUnregister(void *at)
{
    ENTER(GIVING_BACK);
    stub_drain(stub_current()->device);
    pthread_mutex_lock(&stub_lock);
    struct registration **place = &registrations;
    while (*place && (*place)->at != at)
        place = &(*place)->next;
    CUresult answer;
    if (*place) {
        unpin(place);
        answer = stub_current()->sticky;
    } else {
        answer = stub_unknown(HOST_MEMORY_NOT_REGISTERED);
    }
    pthread_mutex_unlock(&stub_lock);
    return answer;
}

bool stub_is_pinned(const void *at, size_t bytes, bool for_write)
{
    const char *next = at, *end = next + bytes;
    bool found = true;
    pthread_mutex_lock(&stub_lock);
    /* Registrations side by side serve one copy. */
    while (next < end && found) {
        found = false;
        for (struct registration *r = registrations; r && !found; r = r->next)
            if (next >= r->at && next < r->at + r->bytes && !(for_write && r->read_only)) {
                next = r->at + r->bytes;
                found = true;
            }
    }
    pthread_mutex_unlock(&stub_lock);
    return next >= end;
}

/* The driver refuses a copy whose host end begins in one registration and ends in another. */
bool stub_crosses_registrations(const void *at, size_t bytes)
{
    const char *first = at;
    bool crosses = false;
    pthread_mutex_lock(&stub_lock);
    for (struct registration *r = registrations; r; r = r->next)
        if (first >= r->at && first < r->at + r->bytes)
            crosses = (size_t)(r->at + r->bytes - first) < bytes;
    pthread_mutex_unlock(&stub_lock);
    return crosses;
}

void stub_forget_memory(int device)
{
    while (memories[device].first)
        give_back(device, &memories[device].first);
    for (struct registration **place = &registrations; *place;)
        if ((*place)->device == device)
            unpin(place);
        else
            place = &(*place)->next;
}

EXPORT CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr at)
{
    enum { WHOSE = 1, TYPE = 2, DEVICE_POINTER = 3, HOST_POINTER = 4, MANAGED = 8, ORDINAL = 9 };
    ENTER(CONTEXT);
    int device = stub_device_of(at);
    bool pinned = device < 0 && stub_is_pinned((void *)at, 1, false);
    if (device < 0 && !pinned)
        return INVALID_VALUE;
    switch (attribute) {
    case WHOSE: *(void **)value = device < 0 ? stub_current() : &stub_contexts[device]; return OK;
    case TYPE: *(unsigned *)value = pinned ? 1 : 2; return OK;
    case DEVICE_POINTER: *(CUdeviceptr *)value = at; return OK;
    case HOST_POINTER:
        if (!pinned)
            return INVALID_VALUE;
        *(CUdeviceptr *)value = at;
        return OK;
    case MANAGED: *(int *)value = 0; return OK;
    case ORDINAL: *(int *)value = pinned ? stub_current()->device : device; return OK;
    default: return INVALID_VALUE;
    }
}
