/* A stand-in for libibverbs and librdmacm, both in one file: a device that connects to whatever FOREBAY_STUB_RDMA says,
 * a list of settings. resolve=ERRNO: there is no way there. reject=STATUS: the controller refuses, for that reason.
 * deaf: nobody listens. strange: who accepts isn't a controller. pair=ERRNO: no queue pair. memory=BYTES: all that may be
 * registered at once. send=STATUS: what is sent fails so. bind=ERRNO: nobody may listen there.
 * dmabuf=ERRNO: what registering a dma-buf gives. Compiled with BEFORE_34 there is no such call. FOREBAY_STUB_LEDGER names a file for what was never given back.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ADDR_RESOLVED, ADDR_ERROR, ROUTE_RESOLVED, REJECTED = 8, ESTABLISHED = 9, DISCONNECTED = 10, EVENTS = 16 };

struct context { void *device; void *ops[32]; int cmd_fd, async_fd, vectors; };
struct pd { struct context *context; };
struct mr { struct context *context; struct pd *pd; void *addr; size_t length; uint32_t handle, lkey, rkey; };
struct comp_channel { struct context *context; int fd, refs, other; };
struct wc { uint64_t id; uint32_t status, opcode, vendor, bytes, imm, qp, src, flags, rest[2]; };
struct cq { struct context *context; struct comp_channel *channel; struct wc done[EVENTS]; int count; };
struct qp { struct context *context; struct cq *cq; };
struct send_wr { uint64_t id; struct send_wr *next; };
struct init_attr { void *context; struct cq *send_cq; };
struct channel { int fd, other; struct event *queue[EVENTS]; int first, last; };
struct id { struct context *verbs; struct channel *channel; void *context; struct qp *qp; char source[128], destination[128]; };
struct param { const void *data; uint8_t len, rest[7]; uint32_t qp; };
struct event { struct id *id, *listen; uint32_t kind; int status; struct param conn; char data[64]; };

static struct { int channels, ids, pairs, queues, domains, regions; size_t bytes; } books;

/* A setting's number; `none` where it isn't there. */
static long setting(const char *name, long none) {
    const char *all = getenv("FOREBAY_STUB_RDMA");
    const char *at = all ? strstr(all, name) : NULL;
    return at ? strtol(at + strlen(name), NULL, 10) : none;
}

static void say(struct id *id, uint32_t kind, int status, const void *data, int len) {
    struct event *event = calloc(1, sizeof *event);
    event->id = id, event->kind = kind, event->status = status;
    memcpy(event->data, data ? data : "", data ? len : 0);
    event->conn.data = data ? event->data : NULL, event->conn.len = len;
    id->channel->queue[id->channel->last++ % EVENTS] = event;
    if (write(id->channel->other, "x", 1) != 1) abort();
}

struct channel *rdma_create_event_channel(void) {
    struct channel *channel = calloc(1, sizeof *channel);
    int ends[2];
    if (pipe(ends)) return NULL;
    channel->fd = ends[0], channel->other = ends[1], books.channels++;
    return channel;
}
void rdma_destroy_event_channel(struct channel *channel) {
    while (channel->first < channel->last) free(channel->queue[channel->first++ % EVENTS]);
    close(channel->fd), close(channel->other), free(channel), books.channels--;
}
int rdma_get_cm_event(struct channel *channel, struct event **event) {
    char byte;
    if (read(channel->fd, &byte, 1) != 1) return -1;
    *event = channel->queue[channel->first++ % EVENTS];
    return 0;
}
int rdma_ack_cm_event(struct event *event) { return free(event), 0; }

static int poll_cq(struct cq *cq, int most, struct wc *into) {
    int taken = cq->count < most ? cq->count : most;
    memcpy(into, cq->done, taken * sizeof *into);
    memmove(cq->done, cq->done + taken, (cq->count - taken) * sizeof *into);
    cq->count -= taken;
    return taken;
}
static int notify(struct cq *cq, int solicited) { return (void)cq, solicited; }
static int post_send(struct qp *qp, struct send_wr *wr, struct send_wr **bad) {
    *bad = NULL;
    for (; wr; wr = wr->next) {
        struct wc done = {.id = wr->id, .status = setting("send=", 0)};
        if (qp->cq->count < EVENTS) qp->cq->done[qp->cq->count++] = done;
    }
    return write(qp->cq->channel->other, "x", 1) == 1 ? 0 : EIO;
}
static int post_recv(struct qp *qp, void *wr, void **bad) { return (void)qp, (void)wr, *bad = NULL, 0; }

static struct context device = {.ops = {[11] = poll_cq, [12] = notify, [25] = post_send, [26] = post_recv}};

int rdma_create_id(struct channel *channel, struct id **id, void *context, int space) {
    *id = calloc(1, sizeof **id);
    (*id)->channel = channel, (*id)->context = context, books.ids++;
    return space == 0x106 ? 0 : -1;
}
int rdma_destroy_id(struct id *id) {
    if (id->qp) abort();
    return free(id), books.ids--, 0;
}
int rdma_bind_addr(struct id *id, const void *address) {
    memcpy(id->source, address, 16);
    return (errno = setting("bind=", 0)) ? -1 : 0;
}
int rdma_listen(struct id *id, int backlog) { return (void)id, (void)backlog, 0; }
int rdma_resolve_addr(struct id *id, const void *from, const void *to, int ms) {
    (void)from, (void)to, (void)ms;
    long error = setting("resolve=", 0);
    if (!error) id->verbs = &device;
    say(id, error ? ADDR_ERROR : ADDR_RESOLVED, -error, NULL, 0);
    return 0;
}
int rdma_resolve_route(struct id *id, int ms) { return (void)ms, say(id, ROUTE_RESOLVED, 0, NULL, 0), 0; }
int rdma_create_qp(struct id *id, struct pd *pd, struct init_attr *attr) {
    if ((errno = setting("pair=", 0))) return -1;
    id->qp = calloc(1, sizeof *id->qp);
    id->qp->context = pd->context, id->qp->cq = attr->send_cq, books.pairs++;
    return 0;
}
void rdma_destroy_qp(struct id *id) { free(id->qp), id->qp = NULL, books.pairs--; }
int rdma_connect(struct id *id, struct param *param) {
    uint8_t accept[32] = {0}, reject[4] = {0, 0, setting("reject=", 0), 0};
    const uint8_t *asked = param->data;
    if (param->len != 32) return errno = EINVAL, -1;
    accept[0] = setting("strange", -1) >= 0;
    accept[2] = asked[6] + 1;
    if (setting("deaf", -1) >= 0) say(id, REJECTED, 8, NULL, 0);
    else if (reject[2]) say(id, REJECTED, 28, reject, sizeof reject);
    else say(id, ESTABLISHED, 0, accept, sizeof accept);
    return 0;
}
int rdma_accept(struct id *id, struct param *param) { return (void)id, (void)param, -1; }
int rdma_reject(struct id *id, const void *data, uint8_t len) { return (void)id, (void)data, (void)len, -1; }
int rdma_disconnect(struct id *id) { return (void)id, 0; }
int rdma_migrate_id(struct id *id, struct channel *channel) { return id->channel = channel, 0; }
void **rdma_get_devices(int *count) {
    static void *list[] = {&device, NULL};
    return *count = 1, list;
}

const char *ibv_get_device_name(void *named) { return (void)named, "stub0"; }
struct pd *ibv_alloc_pd(struct context *context) {
    struct pd *pd = calloc(1, sizeof *pd);
    pd->context = context, books.domains++;
    return pd;
}
int ibv_dealloc_pd(struct pd *pd) { return free(pd), books.domains--, 0; }
struct mr *ibv_reg_mr(struct pd *pd, void *addr, size_t length, int access) {
    struct mr *mr = calloc(1, sizeof *mr);
    if (books.bytes + length > (size_t)setting("memory=", 1L << 40)) return free(mr), errno = ENOMEM, NULL;
    mr->pd = pd, mr->context = pd->context, mr->addr = addr, mr->length = length, mr->lkey = mr->rkey = access;
    books.bytes += length, books.regions++;
    return mr;
}
#ifndef BEFORE_34
/* As a card does that has no use for what is no dma-buf. */
struct mr *ibv_reg_dmabuf_mr(struct pd *pd, uint64_t offset, size_t length, uint64_t at, int fd, int access) {
    if ((errno = setting("dmabuf=", fd < 0 ? EBADF : 0)) || offset) return NULL;
    return ibv_reg_mr(pd, (void *)at, length, access);
}
#endif
int ibv_dereg_mr(struct mr *mr) { return books.bytes -= mr->length, books.regions--, free(mr), 0; }
struct comp_channel *ibv_create_comp_channel(struct context *context) {
    struct comp_channel *channel = calloc(1, sizeof *channel);
    int ends[2];
    if (pipe(ends)) return NULL;
    channel->context = context, channel->fd = ends[0], channel->other = ends[1];
    return channel;
}
int ibv_destroy_comp_channel(struct comp_channel *channel) {
    return close(channel->fd), close(channel->other), free(channel), 0;
}
struct cq *ibv_create_cq(struct context *context, int entries, void *user, struct comp_channel *channel, int vector) {
    (void)entries, (void)user, (void)vector;
    struct cq *cq = calloc(1, sizeof *cq);
    cq->context = context, cq->channel = channel, books.queues++;
    return cq;
}
int ibv_destroy_cq(struct cq *cq) { return books.pairs ? abort(), 1 : (free(cq), books.queues--, 0); }
int ibv_get_cq_event(struct comp_channel *channel, struct cq **cq, void **user) {
    char byte;
    *cq = NULL, *user = NULL;
    return read(channel->fd, &byte, 1) == 1 ? 0 : -1;
}
void ibv_ack_cq_events(struct cq *cq, unsigned count) { (void)cq, (void)count; }
const char *ibv_wc_status_str(uint32_t status) { return status == 12 ? "transport retry counter exceeded" : "other"; }

__attribute__((destructor)) static void close_books(void) {
    const char *name = getenv("FOREBAY_STUB_LEDGER");
    FILE *file = name ? fopen(name, "w") : NULL;
    if (!file) return;
    fprintf(file, "channels=%d ids=%d pairs=%d queues=%d domains=%d regions=%d bytes=%zu\n", books.channels, books.ids,
            books.pairs, books.queues, books.domains, books.regions, books.bytes);
    fclose(file);
}
