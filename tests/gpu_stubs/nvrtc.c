/* A stand-in for libnvrtc: the kernel's source is compiled as C by the host's compiler, into a shared object that the
 * libcuda stand-in loads (cuda_module.c says how). Objects are kept beside the stand-ins, by a hash of what made them.
 *
 * FOREBAY_STUB_NVRTC: `compile=CODE` (what nvrtcCompileProgram answers), `arch=90` (the newest that it knows). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MAGIC "FOREBAY STUB CUBIN\n"

extern char **environ;

enum { SUCCESS, OUT_OF_MEMORY, PROGRAM_CREATION_FAILURE, INVALID_INPUT, INVALID_PROGRAM, INVALID_OPTION, COMPILATION };

struct program {
    char *source;
    char *log;
    char image[4352];
};

static const int archs[] = {75, 80, 86, 89, 90, 100, 120};

static int setting(const char *name, int otherwise)
{
    const char *given = getenv("FOREBAY_STUB_NVRTC");
    const char *at = given ? strstr(given, name) : NULL;
    return at ? atoi(at + strlen(name)) : otherwise;
}

EXPORT int nvrtcVersion(int *major, int *minor)
{
    *major = 13;
    *minor = 0;
    return SUCCESS;
}

EXPORT int nvrtcGetNumSupportedArchs(int *count)
{
    int newest = setting("arch=", 120);
    for (*count = 0; *count < (int)(sizeof archs / sizeof *archs) && archs[*count] <= newest; (*count)++)
        ;
    return SUCCESS;
}

EXPORT int nvrtcGetSupportedArchs(int *list)
{
    int count;
    nvrtcGetNumSupportedArchs(&count);
    memcpy(list, archs, (size_t)count * sizeof *archs);
    return SUCCESS;
}

EXPORT const char *nvrtcGetErrorString(int code)
{
    static const char *const names[] = {"NVRTC_SUCCESS", "NVRTC_ERROR_OUT_OF_MEMORY",
                                        "NVRTC_ERROR_PROGRAM_CREATION_FAILURE", "NVRTC_ERROR_INVALID_INPUT",
                                        "NVRTC_ERROR_INVALID_PROGRAM", "NVRTC_ERROR_INVALID_OPTION",
                                        "NVRTC_ERROR_COMPILATION"};
    return code >= 0 && code <= COMPILATION ? names[code] : "NVRTC_ERROR unknown";
}

EXPORT int nvrtcCreateProgram(void **out, const char *source, const char *name, int header_count,
                              const char *const *headers, const char *const *header_names)
{
    (void)name, (void)headers, (void)header_names;
    if (!out || !source || header_count)
        return INVALID_INPUT;
    struct program *p = calloc(1, sizeof *p);
    p->source = strdup(source);
    p->log = strdup("");
    *out = p;
    return SUCCESS;
}

EXPORT int nvrtcDestroyProgram(void **program)
{
    struct program *p = *program;
    if (!p)
        return INVALID_PROGRAM;
    free(p->source);
    free(p->log);
    free(p);
    *program = NULL;
    return SUCCESS;
}

/* `extern "C"` is C++; the rest of the source is C. */
static void drop_linkage(char *source)
{
    static const char linkage[] = "extern \"C\"";
    for (char *at = source; (at = strstr(at, linkage));)
        memset(at, ' ', sizeof linkage - 1);
}

/* `name:arguments;` of each `__global__ void name(…)`. */
static void list_kernels(const char *source, FILE *out)
{
    static const char head[] = "__global__ void ";
    fputs("\n__attribute__((visibility(\"default\"))) const char *const forebay_stub_kernels = \"", out);
    for (const char *at = source; (at = strstr(at, head));) {
        at += sizeof head - 1;
        int length = (int)strcspn(at, "("), commas = 0;
        const char *arguments = at + length, *end = strchr(arguments, ')');
        if (!end)
            break;
        for (const char *c = arguments; c < end; c++)
            commas += *c == ',';
        bool none = !strncmp(arguments, "(void)", 6) || end == arguments + 1;
        fprintf(out, "%.*s:%d;", length, at, none ? 0 : commas + 1);
    }
    fputs("\";\n", out);
}

static uint64_t hash_of(const char *text)
{
    uint64_t hash = 0xCBF29CE484222325u;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001B3u;
    return hash;
}

/* Where objects are kept: `kernels` beside this library. */
static void folder_of(char *path, size_t room)
{
    Dl_info info;
    char own[PATH_MAX] = "/tmp/libnvrtc";
    if (!dladdr((void *)folder_of, &info) || !realpath(info.dli_fname, own))
        fputs("stub libnvrtc: doesn't know where it is; kernels go to /tmp\n", stderr);
    snprintf(path, room, "%s/kernels", dirname(own));
    mkdir(path, 0777);
}

static char *text_of(const char *path)
{
    char *text = NULL;
    size_t room = 0;
    FILE *in = fopen(path, "re");
    if (!in || getdelim(&text, &room, 0, in) < 0) {
        free(text);
        text = strdup("");
    }
    if (in)
        fclose(in);
    return text;
}

/* Runs the compiler; its words go to `log`. */
static bool compiled(const char *from, const char *to, const char *log)
{
    const char *cc = getenv("CC");
    const char *arguments[] = {cc && *cc ? cc : "cc", "-std=gnu11", "-O2", "-fPIC", "-shared", "-w", "-x", "c",
                               "-include", STUB_SOURCES "/kernel_shim.h", from, "-Wl,-z,defs", "-o", to, NULL};
    posix_spawn_file_actions_t files;
    pid_t child;
    int status = -1;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 2, log, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (!posix_spawnp(&child, arguments[0], &files, NULL, (char *const *)arguments, environ))
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
    posix_spawn_file_actions_destroy(&files);
    return status == 0;
}

static int build(struct program *p, const char *object)
{
    char from[4200], to[4200], log[4200];
    int id = (int)getpid() ^ (int)(uintptr_t)p;
    snprintf(from, sizeof from, "%s.%x.c", object, id);
    snprintf(to, sizeof to, "%s.%x.so", object, id);
    snprintf(log, sizeof log, "%s.%x.log", object, id);
    FILE *out = fopen(from, "we");
    if (!out)
        return PROGRAM_CREATION_FAILURE;
    fputs(p->source, out);
    list_kernels(p->source, out);
    fclose(out);
    bool done = compiled(from, to, log) && !rename(to, object);
    free(p->log);
    p->log = text_of(log);
    unlink(from);
    unlink(log);
    return done ? SUCCESS : COMPILATION;
}

EXPORT int nvrtcCompileProgram(void *program, int count, const char *const *options)
{
    struct program *p = program;
    char folder[4000], object[4100];
    for (int i = 0; i < count; i++)
        if (strncmp(options[i], "-", 1))
            return INVALID_OPTION;
    int refused = setting("compile=", 0);
    if (refused) {
        free(p->log);
        p->log = strdup("kernel.cu(1): error: the stand-in was told to fail\n");
        return refused;
    }
    drop_linkage(p->source);
    folder_of(folder, sizeof folder);
    char *shim = text_of(STUB_SOURCES "/kernel_shim.h");
    snprintf(object, sizeof object, "%s/%016lx.so", folder, hash_of(p->source) ^ hash_of(shim) * 31);
    free(shim);
    int result = access(object, R_OK) ? build(p, object) : SUCCESS;
    snprintf(p->image, sizeof p->image, MAGIC "%s", object);
    return result;
}

EXPORT int nvrtcGetProgramLogSize(void *program, size_t *bytes)
{
    *bytes = strlen(((struct program *)program)->log) + 1;
    return SUCCESS;
}

EXPORT int nvrtcGetProgramLog(void *program, char *log)
{
    strcpy(log, ((struct program *)program)->log);
    return SUCCESS;
}

EXPORT int nvrtcGetCUBINSize(void *program, size_t *bytes)
{
    *bytes = strlen(((struct program *)program)->image) + 1;
    return SUCCESS;
}

EXPORT int nvrtcGetCUBIN(void *program, char *image)
{
    strcpy(image, ((struct program *)program)->image);
    return SUCCESS;
}

EXPORT int nvrtcGetPTXSize(void *program, size_t *bytes)
{
    return nvrtcGetCUBINSize(program, bytes);
}

EXPORT int nvrtcGetPTX(void *program, char *image)
{
    return nvrtcGetCUBIN(program, image);
}
