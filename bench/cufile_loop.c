/* cuFile's calls in a plain loop, and nothing else: what `forebay bench --path gds` is set beside.
 *
 *   cufile_loop sync|batch|stream|batch-stream FILE IO_BYTES WORKERS DEPTH SECONDS DIRECT
 *
 * Each worker is a thread with its own handle on the file, its own registered GPU buffer of DEPTH slots, and a part
 * of the file that it reads again and again, in order:
 *   sync    cuFileRead, one after the other (DEPTH must be 1)
 *   batch   a batch of DEPTH reads, submitted anew once all have finished
 *   stream  cuFileReadAsync, DEPTH of them, each on a stream of its own; the oldest is waited for
 *   batch-stream  the same in two groups, each on a stream, with one event behind it
 * Streams aren't registered with cuFile, as Forebay doesn't (docs/gds.md says why), unless REGISTER_STREAMS is set.
 * Prints one JSON object: bytes, I/Os, seconds, and the process's CPU seconds of exactly that time.
 * libcuda and libcufile are opened by name (LIBCUDA, LIBCUFILE name others), so that no link flags are needed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DEPTH_MAX 128

/* What is used of cuda.h and cufile.h, so that neither is needed to compile this. */
typedef int CUresult, CUdevice;
typedef void *CUcontext, *CUstream, *CUevent, *CUfileHandle_t, *CUfileBatchHandle_t;
typedef unsigned long long CUdeviceptr;
typedef struct { int err; CUresult cu_err; } CUfileError_t;
typedef struct { int type; union { int fd; void *other; } handle; const void *operations; } CUfileDescr_t;
typedef struct {
  int mode;
  struct { void *base; off_t file_offset, base_offset; size_t size; } batch;
  CUfileHandle_t fh;
  int opcode;
  void *cookie;
} CUfileIOParams_t;
typedef struct { void *cookie; int status; size_t ret; } CUfileIOEvents_t;
_Static_assert(sizeof(CUfileDescr_t) == 24 && sizeof(CUfileIOParams_t) == 64 && sizeof(CUfileIOEvents_t) == 24, "cuFile's");
enum { OPAQUE_FD = 1, BATCH = 1, READ = 0, WAITING = 1, PENDING = 2, COMPLETE = 16 };
enum { STREAM_NON_BLOCKING = 1, EVENT_BLOCKING_SYNC = 1, EVENT_DISABLE_TIMING = 2 };

static struct {
  CUresult (*init)(unsigned);
  CUresult (*device)(CUdevice *, int);
  CUresult (*retain)(CUcontext *, CUdevice);
  CUresult (*set_current)(CUcontext);
  CUresult (*alloc)(CUdeviceptr *, size_t);
  CUresult (*stream_create)(CUstream *, unsigned);
  CUresult (*event_create)(CUevent *, unsigned);
  CUresult (*event_record)(CUevent, CUstream);
  CUresult (*event_wait)(CUevent);
} cuda;

static struct {
  CUfileError_t (*open)(void);
  CUfileError_t (*handle)(CUfileHandle_t *, CUfileDescr_t *);
  CUfileError_t (*buffer)(const void *, size_t, int);
  ssize_t (*read)(CUfileHandle_t, void *, size_t, off_t, off_t);
  CUfileError_t (*setup)(CUfileBatchHandle_t *, unsigned);
  CUfileError_t (*submit)(CUfileBatchHandle_t, unsigned, CUfileIOParams_t *, unsigned);
  CUfileError_t (*status)(CUfileBatchHandle_t, unsigned, unsigned *, CUfileIOEvents_t *, struct timespec *);
  CUfileError_t (*read_async)(CUfileHandle_t, void *, size_t *, off_t *, off_t *, ssize_t *, CUstream);
  CUfileError_t (*stream)(CUstream, unsigned);
} cufile;

static struct {
  const char *file;
  size_t io_bytes, file_bytes;
  int workers, depth, direct, registers;
  CUcontext context;
  atomic_int ready, go, stop;
} job;

struct worker {
  pthread_t thread;
  int number;
  CUfileHandle_t handle;
  CUdeviceptr memory;
  off_t first, next, end;
  _Atomic size_t ios; /* read by main while it runs */
};

static void die(const char *what, long code) {
  fprintf(stderr, "%s failed: %ld%s%s\n", what, code, code < 0 && errno ? ", " : "", code < 0 && errno ? strerror(errno) : "");
  exit(4);
}
static void cu(const char *what, CUresult code) { if (code) die(what, code); }
static void cf(const char *what, CUfileError_t error) { if (error.err) die(what, error.err); }

static void *library(const char *variable, const char *name) {
  const char *named = getenv(variable);
  void *found = dlopen(named ? named : name, RTLD_NOW | RTLD_GLOBAL);
  if (!found) { fprintf(stderr, "%s\n", dlerror()); exit(3); }
  return found;
}

static void symbol(void *library, const char *name, void *slot) {
  *(void **)slot = dlsym(library, name);
  if (!*(void **)slot) { fprintf(stderr, "%s is missing\n", name); exit(3); }
}

static void load(void) {
  void *a = library("LIBCUDA", "libcuda.so.1"), *b = library("LIBCUFILE", "libcufile.so.0");
  symbol(a, "cuInit", &cuda.init);
  symbol(a, "cuDeviceGet", &cuda.device);
  symbol(a, "cuDevicePrimaryCtxRetain", &cuda.retain);
  symbol(a, "cuCtxSetCurrent", &cuda.set_current);
  symbol(a, "cuMemAlloc_v2", &cuda.alloc);
  symbol(a, "cuStreamCreate", &cuda.stream_create);
  symbol(a, "cuEventCreate", &cuda.event_create);
  symbol(a, "cuEventRecord", &cuda.event_record);
  symbol(a, "cuEventSynchronize", &cuda.event_wait);
  symbol(b, "cuFileDriverOpen", &cufile.open);
  symbol(b, "cuFileHandleRegister", &cufile.handle);
  symbol(b, "cuFileBufRegister", &cufile.buffer);
  symbol(b, "cuFileRead", &cufile.read);
  symbol(b, "cuFileBatchIOSetUp", &cufile.setup);
  symbol(b, "cuFileBatchIOSubmit", &cufile.submit);
  symbol(b, "cuFileBatchIOGetStatus", &cufile.status);
  symbol(b, "cuFileReadAsync", &cufile.read_async);
  symbol(b, "cuFileStreamRegister", &cufile.stream);
}

static double wall(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static double cpu(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* The next offset of this worker's part, which begins anew at its end. */
static off_t advance(struct worker *w) {
  off_t at = w->next;
  w->next += job.io_bytes;
  if (w->next + (off_t)job.io_bytes > w->end) w->next = w->first;
  return at;
}

static void finished(struct worker *w, ssize_t got, const char *how) {
  if (got != (ssize_t)job.io_bytes) die(how, got);
  w->ios++;
}

static void sync_loop(struct worker *w) {
  while (!job.stop) finished(w, cufile.read(w->handle, (void *)w->memory, job.io_bytes, advance(w), 0), "cuFileRead");
}

/* A batch takes no more before all of it was reported. */
static void batch_loop(struct worker *w) {
  CUfileBatchHandle_t batch;
  CUfileIOParams_t all[DEPTH_MAX] = {0};
  CUfileIOEvents_t events[DEPTH_MAX];
  cf("cuFileBatchIOSetUp", cufile.setup(&batch, job.depth));
  for (int i = 0; i < job.depth; i++) {
    all[i].mode = BATCH;
    all[i].batch.base = (void *)w->memory;
    all[i].batch.base_offset = (off_t)(i * job.io_bytes);
    all[i].batch.size = job.io_bytes;
    all[i].fh = w->handle;
    all[i].opcode = READ;
  }
  while (!job.stop) {
    for (int i = 0; i < job.depth; i++) all[i].batch.file_offset = advance(w);
    cf("cuFileBatchIOSubmit", cufile.submit(batch, job.depth, all, 0));
    for (unsigned flying = job.depth; flying;) {
      unsigned count = flying;
      cf("cuFileBatchIOGetStatus", cufile.status(batch, flying, &count, events, NULL));
      if (!count) usleep(50); /* a status that doesn't wait */
      for (unsigned i = 0; i < count; i++) {
        if (events[i].status == WAITING || events[i].status == PENDING) continue;
        if (events[i].status != COMPLETE) die("a read of a batch", events[i].status);
        finished(w, (ssize_t)events[i].ret, "a read of a batch");
        flying--;
      }
    }
  }
}

/* Reads on streams, so many together on one with one event behind them. */
static void in_groups(struct worker *w, int together) {
  CUstream streams[DEPTH_MAX];
  CUevent events[DEPTH_MAX];
  size_t sizes[DEPTH_MAX];
  off_t offsets[DEPTH_MAX], places[DEPTH_MAX];
  ssize_t got[DEPTH_MAX];
  size_t groups = (size_t)(job.depth / together);
  for (size_t g = 0; g < groups; g++) {
    cu("cuStreamCreate", cuda.stream_create(&streams[g], STREAM_NON_BLOCKING));
    if (job.registers)
      cf("cuFileStreamRegister", cufile.stream(streams[g], 15));
    cu("cuEventCreate", cuda.event_create(&events[g], EVENT_DISABLE_TIMING | EVENT_BLOCKING_SYNC));
  }
  size_t sent = 0, seen = 0;
  while (!job.stop || seen < sent) {
    if (!job.stop && sent - seen < groups) {
      size_t g = sent % groups;
      for (int i = (int)g * together; i < ((int)g + 1) * together; i++) {
        sizes[i] = job.io_bytes, offsets[i] = advance(w), places[i] = (off_t)(i * job.io_bytes), got[i] = 0;
        cf("cuFileReadAsync", cufile.read_async(w->handle, (void *)w->memory, &sizes[i], &offsets[i], &places[i], &got[i], streams[g]));
      }
      cu("cuEventRecord", cuda.event_record(events[g], streams[g]));
      sent++;
      continue;
    }
    size_t g = seen % groups;
    cu("cuEventSynchronize", cuda.event_wait(events[g]));
    for (int i = (int)g * together; i < ((int)g + 1) * together; i++) finished(w, got[i], "cuFileReadAsync");
    seen++;
  }
}

static void stream_loop(struct worker *w) {
  in_groups(w, 1);
}

/* Two groups, as forebay has without --cufile-batch. */
static void batch_stream_loop(struct worker *w) {
  in_groups(w, (job.depth + 1) / 2);
}

static void (*loop)(struct worker *);

static void *work(void *given) {
  struct worker *w = given;
  size_t part = job.file_bytes / job.workers / job.io_bytes * job.io_bytes;
  CUfileDescr_t description = {.type = OPAQUE_FD};
  cu("cuCtxSetCurrent", cuda.set_current(job.context));
  description.handle.fd = open(job.file, O_RDONLY | (job.direct ? O_DIRECT : 0));
  if (description.handle.fd < 0) die(job.file, -1);
  cf("cuFileHandleRegister", cufile.handle(&w->handle, &description));
  cu("cuMemAlloc", cuda.alloc(&w->memory, job.io_bytes * job.depth));
  cf("cuFileBufRegister", cufile.buffer((void *)w->memory, job.io_bytes * job.depth, 0));
  w->first = w->next = (off_t)(part * w->number), w->end = w->first + (off_t)part;
  job.ready++;
  while (!job.go) usleep(200);
  loop(w);
  return NULL;
}

static size_t ios(struct worker *all) {
  size_t sum = 0;
  for (int i = 0; i < job.workers; i++) sum += all[i].ios;
  return sum;
}

int main(int count, char **words) {
  if (count != 8) { fprintf(stderr, "cufile_loop sync|batch|stream|batch-stream FILE IO_BYTES WORKERS DEPTH SECONDS DIRECT\n"); return 2; }
  loop = !strcmp(words[1], "sync") ? sync_loop : !strcmp(words[1], "batch") ? batch_loop : !strcmp(words[1], "stream") ? stream_loop : batch_stream_loop;
  job.file = words[2], job.io_bytes = strtoull(words[3], NULL, 10);
  job.workers = atoi(words[4]), job.depth = atoi(words[5]), job.direct = atoi(words[7]);
  job.registers = getenv("REGISTER_STREAMS") != NULL;
  double seconds = atof(words[6]);
  struct stat status;
  if (stat(job.file, &status)) die(job.file, -1);
  job.file_bytes = status.st_size;
  if (job.workers < 1 || job.depth < 1 || job.depth > DEPTH_MAX || !job.io_bytes || job.file_bytes / job.workers < 2 * job.io_bytes) return 2;
  CUdevice device;
  load();
  cu("cuInit", cuda.init(0));
  cu("cuDeviceGet", cuda.device(&device, 0));
  cu("cuDevicePrimaryCtxRetain", cuda.retain(&job.context, device));
  cu("cuCtxSetCurrent", cuda.set_current(job.context));
  cf("cuFileDriverOpen", cufile.open());
  struct worker *all = calloc(job.workers, sizeof *all);
  for (int i = 0; i < job.workers; i++) {
    all[i].number = i;
    if (pthread_create(&all[i].thread, NULL, work, &all[i])) die("pthread_create", -1);
  }
  while (job.ready < job.workers) usleep(200);
  job.go = 1;
  usleep(300000); /* warm-up, in no figure */
  size_t before = ios(all);
  double began = wall(), spent = cpu();
  usleep((useconds_t)(seconds * 1e6));
  size_t done = ios(all) - before;
  double took = wall() - began, cost = cpu() - spent;
  job.stop = 1;
  for (int i = 0; i < job.workers; i++) pthread_join(all[i].thread, NULL);
  printf("{\"seconds\": %.6f, \"bytes\": %zu, \"ios\": %zu, \"cpu_s\": %.6f}\n", took, done * job.io_bytes, done, cost);
  return 0;
}
