/* A stand-in for libcufile: files, buffers, synchronous and stream calls. Batches, counters and
 * settings have files of their own.
 *
 * FOREBAY_STUB_CUFILE is a list: `mode=compat|nvfs|p2p|mixed` (by which way I/O goes, and is counted), `version=1150`
 * (1.15), `reroute=N` (every Nth I/O that goes direct is counted as rerouted, too), `stats=0` (no counters), `batch_max`, `batch_hang=N` (in compatibility mode a batch of more than N entries
 * waits for ever when it is submitted), `batch_stall=N` (the Nth batch never ends by itself), `io_max=BYTES` (longer
 * calls are short), `delay_us`, and `fail=CALL:NTH[+]:CODE` as for libcuda's: a code from 5000 on is cuFile's own, one
 * below an errno. A file that isn't open with O_DIRECT, and I/O that isn't aligned to 4 KiB, goes by POSIX in all modes. */
#define _GNU_SOURCE
#include "cufile.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of the libcuda stand-in. */
void *stub_alias(uint64_t at, size_t bytes);
int stub_device_of(uint64_t at);
void stub_live(const char *name, int64_t by);
void stub_cufile_came(int device, const void *at, size_t bytes);
int cuLaunchHostFunc(void *stream, void (*call)(void *), void *data);
int cuCtxGetCurrent(void **context);

pthread_mutex_t cufile_lock = PTHREAD_MUTEX_INITIALIZER;
long cufile_users;
static bool allow_compat = true, force_compat;

struct file {
    int fd; /* the caller's */
    int own;
    int past; /* the page cache; below 0 where the caller's doesn't go past it */
    struct file *next;
};
static struct file *files;

struct buffer {
    char *at;
    size_t bytes;
    struct buffer *next;
};
static struct buffer *buffers;

/* The driver ---------------------------------------------------------------------------------------------------*/

EXPORT struct status cuFileDriverOpen(void)
{
    void *context = NULL;
    ENTER();
    if (cuCtxGetCurrent(&context) || !context)
        return (struct status){CUDA_DRIVER_ERROR, 201};
    if (cufile_settings.mode == POSIX && !allow_compat)
        return status(DRIVER_NOT_INITIALIZED);
    cufile_users++;
    return status(DONE);
}

EXPORT struct status cuFileDriverClose_v2(void)
{
    ENTER();
    cufile_users = 0;
    return status(DONE);
}

EXPORT struct status cuFileDriverClose(void)
{
    return cuFileDriverClose_v2();
}

EXPORT long cuFileUseCount(void)
{
    return cufile_users;
}

EXPORT struct status cuFileGetVersion(int *version)
{
    ENTER();
    *version = cufile_settings.version;
    return status(DONE);
}

EXPORT struct status cuFileDriverGetProperties(struct properties *p)
{
    ENTER();
    if (!cufile_users)
        return status(DRIVER_NOT_INITIALIZED);
    bool nvfs = cufile_settings.mode == NVFS || cufile_settings.mode == MIXED;
    *p = (struct properties){
        .major = nvfs ? 2 : 0,
        .minor = nvfs ? 26 : 0,
        .poll_threshold_kib = 4,
        .direct_io_max_kib = 16384,
        .supports = (nvfs ? 1u << 4 : 0) | (cufile_settings.mode == P2P ? 1u << 11 : 0),
        .controls = allow_compat ? 1u << 1 : 0,
        .features = 1u << 1 | 1u << 2,
        .device_cache_max_kib = 131072,
        .buffer_cache_kib = 1024,
        .pinned_max_kib = 33554432,
        .batch_max = (unsigned)cufile_settings.batch_max,
        .batch_timeout_ms = 0,
    };
    return status(DONE);
}

enum { ALLOW_COMPAT_MODE = 1, FORCE_COMPAT_MODE = 2, USE_PCI_P2PDMA = 7, BOOLS = 12 };

EXPORT struct status cuFileSetParameterBool(int parameter, bool value)
{
    ENTER();
    if (cufile_users || parameter < 0 || parameter >= BOOLS)
        return status(INVALID_VALUE_GIVEN);
    if (parameter == ALLOW_COMPAT_MODE)
        allow_compat = value;
    if (parameter == FORCE_COMPAT_MODE)
        force_compat = value;
    return status(DONE);
}

EXPORT struct status cuFileGetParameterBool(int parameter, bool *value)
{
    ENTER();
    if (parameter < 0 || parameter >= BOOLS)
        return status(INVALID_VALUE_GIVEN);
    *value = parameter == ALLOW_COMPAT_MODE   ? allow_compat
             : parameter == FORCE_COMPAT_MODE ? force_compat
                                              : parameter == USE_PCI_P2PDMA && cufile_settings.mode == P2P;
    return status(DONE);
}

/* The pool of staging buffers of compatibility mode. */
EXPORT struct status cuFileGetParameterPosixPoolSlabArray(size_t *sizes_kib, size_t *counts, int length)
{
    static const size_t kib[] = {4, 1024, 16384}, count[] = {128, 64, 32};
    ENTER();
    if (length < 3)
        return status(INVALID_VALUE_GIVEN);
    memcpy(sizes_kib, kib, sizeof kib);
    memcpy(counts, count, sizeof count);
    for (int i = 3; i < length; i++)
        sizes_kib[i] = counts[i] = 0;
    return status(DONE);
}

/* Files and buffers --------------------------------------------------------------------------------------------*/

/* I/O goes by descriptors of its own: what is counted as direct past the page cache, the rest through it. */
EXPORT struct status cuFileHandleRegister(void **handle, struct descriptor *d)
{
    char path[64];
    ENTER();
    if (!cufile_users)
        return status(DRIVER_NOT_INITIALIZED);
    int flags = d && d->kind == 1 ? fcntl(d->handle.fd, F_GETFL) : -1;
    if (flags < 0)
        return status(INVALID_VALUE_GIVEN);
    if (flags & O_NONBLOCK) /* as 1.15.1 does */
        return status(INVALID_FILE_OPEN_FLAG);
    snprintf(path, sizeof path, "/proc/self/fd/%d", d->handle.fd);
    int own = open(path, (flags & O_ACCMODE) | O_CLOEXEC);
    if (own < 0)
        return status(HANDLE_NOT_REGISTERED);
    int past = flags & O_DIRECT ? open(path, (flags & (O_ACCMODE | O_DIRECT)) | O_CLOEXEC) : -1;
    struct file *f = malloc(sizeof *f);
    pthread_mutex_lock(&cufile_lock);
    *f = (struct file){d->handle.fd, own, past, files};
    files = f;
    cufile_stats.basic.handle_registers.ok++;
    pthread_mutex_unlock(&cufile_lock);
    stub_live("cufile_handles", 1);
    *handle = f;
    return status(DONE);
}

EXPORT void cuFileHandleDeregister(void *handle)
{
    cufile_enter(__func__);
    pthread_mutex_lock(&cufile_lock);
    struct file **place = &files;
    while (*place && *place != handle)
        place = &(*place)->next;
    struct file *f = *place;
    if (f)
        *place = f->next;
    pthread_mutex_unlock(&cufile_lock);
    if (f) {
        close(f->own);
        if (f->past >= 0)
            close(f->past);
        free(f);
        stub_live("cufile_handles", -1);
    }
}

EXPORT struct status cuFileBufRegister(const void *at, size_t bytes, int flags)
{
    (void)flags;
    ENTER();
    if (!cufile_users)
        return status(DRIVER_NOT_INITIALIZED);
    if (stub_device_of((uint64_t)at) < 0)
        return status(CUDA_POINTER_INVALID);
    if (!stub_alias((uint64_t)at, bytes))
        return status(CUDA_POINTER_RANGE_ERROR);
    pthread_mutex_lock(&cufile_lock);
    struct buffer *b = buffers;
    while (b && b->at != at)
        b = b->next;
    if (!b) {
        b = malloc(sizeof *b);
        *b = (struct buffer){(char *)at, bytes, buffers};
        buffers = b;
        cufile_stats.gpus[stub_device_of((uint64_t)at)].registered_bytes += bytes;
        pthread_mutex_unlock(&cufile_lock);
        stub_live("cufile_buffers", 1);
        return status(DONE);
    }
    pthread_mutex_unlock(&cufile_lock);
    return status(MEMORY_ALREADY_REGISTERED);
}

EXPORT struct status cuFileBufDeregister(const void *at)
{
    ENTER();
    pthread_mutex_lock(&cufile_lock);
    struct buffer **place = &buffers;
    while (*place && (*place)->at != at)
        place = &(*place)->next;
    struct buffer *b = *place;
    if (b)
        *place = b->next;
    pthread_mutex_unlock(&cufile_lock);
    if (!b)
        return status(MEMORY_NOT_REGISTERED);
    free(b);
    stub_live("cufile_buffers", -1);
    return status(DONE);
}

/* I/O ----------------------------------------------------------------------------------------------------------*/

static enum way way_of(const struct file *f, size_t bytes, off_t offset)
{
    static unsigned turn;
    bool can = f->past >= 0 && !force_compat && (bytes | (size_t)offset) % 4096 == 0;
    if (cufile_settings.mode == POSIX || !can)
        return POSIX;
    if (cufile_settings.mode == MIXED)
        return __atomic_fetch_add(&turn, 1, __ATOMIC_RELAXED) % 2 ? POSIX : NVFS;
    return cufile_settings.mode;
}

static bool is_known(const struct file *f)
{
    pthread_mutex_lock(&cufile_lock);
    const struct file *at = files;
    while (at && at != f)
        at = at->next;
    pthread_mutex_unlock(&cufile_lock);
    return at;
}

static ssize_t buffered(int fd, char *memory, size_t bytes, off_t offset, bool writes)
{
    ssize_t moved = 0, n = 1;
    while (n > 0 && (size_t)moved < bytes) {
        n = writes ? pwrite(fd, memory + moved, bytes - (size_t)moved, offset + moved)
                   : pread(fd, memory + moved, bytes - (size_t)moved, offset + moved);
        moved += n > 0 ? n : 0;
    }
    return n < 0 && !moved ? -errno : moved;
}

/* Memory of a GPU may lie anywhere; the kernel wants the host's aligned. */
static ssize_t direct(int fd, char *memory, size_t bytes, off_t offset, bool writes)
{
    void *aligned;
    if (posix_memalign(&aligned, 4096, bytes ? bytes : 1))
        return -ENOMEM;
    if (writes)
        memcpy(aligned, memory, bytes);
    ssize_t n = writes ? pwrite(fd, aligned, bytes, offset) : pread(fd, aligned, bytes, offset);
    ssize_t result = n < 0 ? -errno : n;
    if (!writes && n > 0)
        memcpy(memory, aligned, (size_t)n);
    free(aligned);
    return result;
}

ssize_t cufile_transfer(void *handle, char *base, size_t bytes, off_t offset, off_t base_offset, bool writes, enum way *way)
{
    struct file *f = handle;
    int gpu = stub_device_of((uint64_t)base);
    if (!is_known(f))
        return -HANDLE_NOT_REGISTERED;
    if (gpu < 0)
        return -CUDA_POINTER_INVALID;
    if (cufile_settings.io_max && bytes > cufile_settings.io_max)
        bytes = cufile_settings.io_max;
    char *memory = stub_alias((uint64_t)base + (uint64_t)base_offset, bytes);
    if (!memory)
        return -CUDA_POINTER_RANGE_ERROR;
    bool unaligned = (bytes | (size_t)offset | (size_t)base_offset) % 4096;
    *way = way_of(f, bytes, offset);
    if (*way == POSIX && !allow_compat)
        return -5008;
    ssize_t result = *way == POSIX ? buffered(f->own, memory, bytes, offset, writes)
                                   : direct(f->past, memory, bytes, offset, writes);
    ssize_t moved = result < 0 ? 0 : result;
    if (!writes)
        stub_cufile_came(gpu, memory, (size_t)moved);
    cufile_count(gpu, result, unaligned, writes, *way);
    return result;
}

/* -1 with errno, as a system call has it, or the negated code. */
static ssize_t answer(ssize_t result)
{
    if (result < 0 && result > -5000) {
        errno = (int)-result;
        return -1;
    }
    return result;
}

EXPORT ssize_t cuFileRead(void *handle, void *base, size_t bytes, off_t offset, off_t base_offset)
{
    enum way way;
    int code = cufile_enter(__func__);
    return answer(code ? -code : cufile_transfer(handle, base, bytes, offset, base_offset, false, &way));
}

EXPORT ssize_t cuFileWrite(void *handle, const void *base, size_t bytes, off_t offset, off_t base_offset)
{
    enum way way;
    int code = cufile_enter(__func__);
    return answer(code ? -code : cufile_transfer(handle, (char *)base, bytes, offset, base_offset, true, &way));
}

struct stream_io {
    void *handle;
    char *base;
    size_t *bytes;
    off_t *offset, *base_offset;
    ssize_t *result;
    bool writes;
    int code;
};

static bool is_registered(const char *at)
{
    pthread_mutex_lock(&cufile_lock);
    struct buffer *b = buffers;
    while (b && b->at != at)
        b = b->next;
    pthread_mutex_unlock(&cufile_lock);
    return b;
}

/* The stream has come to it: sizes and offsets are read now. In compatibility mode 1.15.1 forgets the offset into a
 * registered buffer. */
static void run_stream_io(void *data)
{
    struct stream_io io = *(struct stream_io *)data;
    off_t none = 0;
    enum way way;
    free(data);
    if (cufile_settings.mode == POSIX && is_registered(io.base))
        io.base_offset = &none;
    *io.result = io.code ? -io.code
                         : cufile_transfer(io.handle, io.base, *io.bytes, *io.offset, *io.base_offset, io.writes, &way);
}

/* `async` stands for the I/O itself in fail=. */
static struct status start(struct stream_io io, void *stream)
{
    if (!io.bytes || !io.offset || !io.base_offset || !io.result)
        return status(INVALID_VALUE_GIVEN);
    io.code = cufile_enter("async");
    struct stream_io *kept = malloc(sizeof io);
    *kept = io;
    int cuda = cuLaunchHostFunc(stream, run_stream_io, kept);
    return cuda ? (struct status){CUDA_DRIVER_ERROR, cuda} : status(DONE);
}

EXPORT struct status cuFileReadAsync(void *handle, void *base, size_t *bytes, off_t *offset, off_t *base_offset,
                                     ssize_t *result, void *stream)
{
    ENTER();
    return start((struct stream_io){handle, base, bytes, offset, base_offset, result, false, 0}, stream);
}

EXPORT struct status cuFileWriteAsync(void *handle, void *base, size_t *bytes, off_t *offset, off_t *base_offset,
                                      ssize_t *result, void *stream)
{
    ENTER();
    return start((struct stream_io){handle, base, bytes, offset, base_offset, result, true, 0}, stream);
}

EXPORT struct status cuFileStreamRegister(void *stream, unsigned flags)
{
    (void)stream;
    ENTER();
    if (flags > 15)
        return status(INVALID_VALUE_GIVEN);
    stub_live("cufile_streams", 1);
    return status(DONE);
}

EXPORT struct status cuFileStreamDeregister(void *stream)
{
    (void)stream;
    ENTER();
    stub_live("cufile_streams", -1);
    return status(DONE);
}
