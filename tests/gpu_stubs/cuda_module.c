/* Kernels, run on the host: a module is a shared object that the libnvrtc
 * stand-in compiled from the kernel's own source, with kernel_shim.h in place of
 * CUDA's built-ins. Its image begins with MAGIC and names the file.
 *
 * The object's `forebay_stub_kernels` lists its kernels as `name:arguments;`.
 * Each argument is an integer or a pointer of at most 8 bytes. */
#define _GNU_SOURCE
#include "stub.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "FOREBAY STUB CUBIN\n"
#define ARGUMENTS_MAX 16

typedef void (*kernel)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                       uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
typedef void (*block_runner)(kernel, const uint64_t *, const unsigned *grid, const unsigned *threads);

struct function {
    char name[128];
    kernel code;
    int arguments;
    block_runner run;
    struct function *next;
};

struct module {
    void *library;
    struct function *functions;
    int device;
    bool live;
    struct module *next;
};
static struct module *modules;

EXPORT CUresult cuModuleLoadData(void **module, const void *image)
{
    char path[4096];
    ENTER(CONTEXT);
    if (!image || strncmp(image, MAGIC, sizeof MAGIC - 1))
        return INVALID_IMAGE;
    snprintf(path, sizeof path, "%s", (const char *)image + sizeof MAGIC - 1);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "stub libcuda: %s\n", dlerror());
        return INVALID_IMAGE;
    }
    struct module *m = calloc(1, sizeof *m);
    *m = (struct module){library, NULL, stub_current()->device, true, NULL};
    pthread_mutex_lock(&stub_lock);
    m->next = modules;
    modules = m;
    COUNT(modules, 1);
    pthread_mutex_unlock(&stub_lock);
    *module = m;
    return OK;
}

static struct module *module_of(void *handle)
{
    struct module *found = NULL;
    pthread_mutex_lock(&stub_lock);
    for (struct module *m = modules; m && !found; m = m->next)
        if (m == handle && m->live)
            found = m;
    pthread_mutex_unlock(&stub_lock);
    return found;
}

EXPORT CUresult cuModuleUnload(void *module)
{
    ENTER(GIVING_BACK);
    struct module *m = module_of(module);
    if (!m)
        return INVALID_HANDLE;
    stub_drain(m->device);
    m->live = false;
    COUNT(modules, -1);
    return stub_current()->sticky;
}

void stub_forget_modules(int device)
{
    for (struct module *m = modules; m; m = m->next)
        if (m->live && m->device == device) {
            m->live = false;
            COUNT(modules, -1);
        }
}

/* How many arguments the kernel takes; -1 for a name that isn't one. */
static int arguments_of(struct module *m, const char *name)
{
    const char *const *list = dlsym(m->library, "forebay_stub_kernels");
    size_t length = strlen(name);
    for (const char *at = list ? *list : ""; *at; at = strchr(at, ';') + 1)
        if (!strncmp(at, name, length) && at[length] == ':')
            return atoi(at + length + 1);
    return -1;
}

EXPORT CUresult cuModuleGetFunction(void **function, void *module, const char *name)
{
    ENTER(CONTEXT);
    struct module *m = module_of(module);
    if (!m)
        return INVALID_HANDLE;
    int arguments = arguments_of(m, name);
    if (arguments < 0 || arguments > ARGUMENTS_MAX || strlen(name) >= sizeof((struct function *)0)->name)
        return NOT_FOUND;
    struct function *f = calloc(1, sizeof *f);
    strcpy(f->name, name);
    *(void **)&f->code = dlsym(m->library, name);
    *(void **)&f->run = dlsym(m->library, "forebay_stub_run");
    f->arguments = arguments;
    f->next = m->functions;
    m->functions = f;
    *function = f;
    return f->code && f->run ? OK : NOT_FOUND;
}

struct launch {
    struct function *function;
    unsigned grid[3], threads[3];
    uint64_t arguments[ARGUMENTS_MAX];
};

static void run_launch(void *data, struct context *context)
{
    struct launch *l = data;
    CUresult failed = context->sticky ? context->sticky : stub_execute("launch");
    if (failed) {
        stub_break(context, failed);
    } else {
        stub_open_memory();
        l->function->run(l->function->code, l->arguments, l->grid, l->threads);
        stub_close_memory();
        COUNT(launches, 1);
    }
    free(l);
}

EXPORT CUresult cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                               unsigned shared_bytes, void *stream, void **arguments, void **extra)
{
    ENTER(CONTEXT);
    struct function *f = function;
    struct stream *s = stub_stream_of(stream);
    if (!f || !s)
        return INVALID_HANDLE;
    if (!gx || !gy || !gz || !bx || !by || !bz || bx * by * bz > 1024 || shared_bytes > 48 << 10 || extra)
        return INVALID_VALUE;
    struct launch *l = calloc(1, sizeof *l);
    *l = (struct launch){f, {gx, gy, gz}, {bx, by, bz}, {0}};
    for (int i = 0; i < f->arguments; i++)
        memcpy(&l->arguments[i], arguments[i], 8);
    return stub_queue(s, run_launch, l);
}
