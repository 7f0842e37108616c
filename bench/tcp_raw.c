/* TCP and nothing above it, over loopback or any address: what NVMe/TCP is set beside.
 *
 *   tcp_raw stream BYTES CONNECTIONS SECONDS     a sender that writes BYTES at a time from one warm buffer, a receiver
 *                                                that reads as much at a time into one buffer for each connection
 *   tcp_raw zerocopy BYTES CONNECTIONS SECONDS   the same, with MSG_ZEROCOPY, its notifications taken; also prints the
 *                                                share of sends that the kernel copied all the same
 *   tcp_raw pingpong ASK ANSWER [CPU,CPU] SECONDS   ASK bytes there, ANSWER bytes back, blocking on both sides; the
 *                                                one that answers stays on the first processor, the other on the second
 *
 * SPAN=BYTES in the environment: each sender walks through so much memory, and each receiver through SLOTS=N buffers, as
 * a drive's content and a host's slots are walked through; without them both use one buffer, which stays in the cache.
 * NETNS=NAME,ADDRESS in the environment: the sender's end is in that network namespace, at its IPv4 address.
 *
 * Sender and receiver are processes of their own, as a target and a host are. Each serves its connections by one
 * thread each. Sockets have their default buffers and TCP_NODELAY. Prints one JSON object: bytes, rounds or
 * transfers, seconds, CPU seconds of both processes in exactly that time, and for pingpong the median and mean of a
 * round in microseconds. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_MAX 64
#define HISTOGRAM 200000 /* tenths of a microsecond */

struct shared {
    atomic_int stop;
    double peer_cpu;
    /* Of MSG_ZEROCOPY: sends whose notification came, and those of them that the kernel copied. */
    atomic_ullong reported, copied;
};
static struct shared *shared;
static size_t ask, answer;
/* Buffers of `ask` bytes that a sender and a receiver go through. */
static size_t spans = 1, slots = 1;
static int zerocopy;
static atomic_ullong moved;

static void fail(const char *what)
{
    perror(what);
    exit(3);
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double cpu_now(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static char *warm(size_t bytes)
{
    char *at = mmap(NULL, bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        fail("memory");
    memset(at, 1, bytes);
    return at;
}

/* Takes the notifications of MSG_ZEROCOPY that are there. */
static void hear(int fd)
{
    char control[128];
    for (;;) {
        struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
        if (recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
            return;
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
            struct sock_extended_err *e = (void *)CMSG_DATA(c);
            if (e->ee_origin != SO_EE_ORIGIN_ZEROCOPY)
                continue;
            unsigned sends = e->ee_data - e->ee_info + 1;
            atomic_fetch_add(&shared->reported, sends);
            if (e->ee_code & SO_EE_CODE_ZEROCOPY_COPIED)
                atomic_fetch_add(&shared->copied, sends);
        }
    }
}

static int put_uncopied(int fd, const char *at, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = send(fd, at + done, bytes - done, MSG_NOSIGNAL | MSG_ZEROCOPY);
        if (n <= 0 && errno != ENOBUFS)
            return 0;
        hear(fd);
        done += n > 0 ? n : 0;
    }
    return 1;
}

static int put(int fd, const char *at, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = send(fd, at + done, bytes - done, MSG_NOSIGNAL);
        if (n <= 0)
            return 0;
        done += n;
    }
    return 1;
}

static int take(int fd, char *at, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = recv(fd, at + done, bytes - done, 0);
        if (n <= 0)
            return 0;
        done += n;
    }
    return 1;
}

static void *sender(void *arg)
{
    int fd = (int)(long)arg;
    char *from = warm(ask * spans), *at = from;
    for (size_t n = 0; !atomic_load_explicit(&shared->stop, memory_order_relaxed) &&
                       (zerocopy ? put_uncopied(fd, at, ask) : put(fd, at, ask));)
        at = from + ask * (++n % spans);
    shutdown(fd, SHUT_WR);
    return NULL;
}

static void *receiver(void *arg)
{
    int fd = (int)(long)arg;
    char *into = warm(ask * slots);
    for (size_t done = 0;;) {
        ssize_t n = recv(fd, into + done, ask - done % ask, 0);
        if (n <= 0)
            return NULL;
        done = (done + n) % (ask * slots);
        atomic_fetch_add_explicit(&moved, n, memory_order_relaxed);
    }
}

static void *responder(void *arg)
{
    int fd = (int)(long)arg;
    char *in = warm(ask), *out = warm(answer);
    while (take(fd, in, ask) && put(fd, out, answer))
        ;
    return NULL;
}

static void each(void *(*body)(void *), const int *fds, int count)
{
    pthread_t threads[CONNECTIONS_MAX];
    for (int i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, body, (void *)(long)fds[i]);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

/* Both ends on loopback, as ours: a congestion control that paces (BBR is some systems' default) sets timers there. */
static int unpaced(int fd)
{
    if (fd >= 0)
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
    return fd;
}

static void tune(int fd)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (zerocopy && setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one))
        fail("SO_ZEROCOPY");
}

static void stream(const int *fds, int count, double seconds)
{
    pthread_t threads[CONNECTIONS_MAX];
    for (int i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, receiver, (void *)(long)fds[i]);
    usleep(300000);
    unsigned long long before = atomic_load(&moved);
    double begin = seconds_now(), cpu = cpu_now();
    usleep((useconds_t)(seconds * 1e6));
    unsigned long long bytes = atomic_load(&moved) - before;
    double took = seconds_now() - begin, used = cpu_now() - cpu;
    shared->stop = 1;
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    int status;
    wait(&status);
    /* The peer's CPU is of all its time; scaled to the measured part. */
    used += shared->peer_cpu * took / (took + 0.3);
    printf("{\"bytes\": %llu, \"ios\": %llu, \"seconds\": %.6f, \"cpu_s\": %.6f", bytes, bytes / ask, took, used);
    unsigned long long reported = shared->reported, copied = shared->copied;
    if (zerocopy)
        printf(", \"reported\": %llu, \"copied_share\": %.4f", reported, reported ? (double)copied / reported : 0.0);
    puts("}");
}

/* The calling process stays on one processor. */
static void stay_on(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        fail("sched_setaffinity");
}

static void pingpong(int fd, double seconds)
{
    static unsigned histogram[HISTOGRAM];
    char *out = warm(ask), *in = warm(answer);
    for (int i = 0; i < 1000; i++)
        if (!put(fd, out, ask) || !take(fd, in, answer))
            fail("ping");
    unsigned long long rounds = 0;
    double begin = seconds_now(), cpu = cpu_now(), last = begin;
    while (last - begin < seconds) {
        if (!put(fd, out, ask) || !take(fd, in, answer))
            fail("ping");
        double now = seconds_now();
        unsigned long tenth = (unsigned long)((now - last) * 1e7);
        histogram[tenth < HISTOGRAM ? tenth : HISTOGRAM - 1]++;
        last = now;
        rounds++;
    }
    double took = last - begin, used = cpu_now() - cpu;
    close(fd);
    int status;
    wait(&status);
    unsigned long long seen = 0;
    int median = 0;
    while (median < HISTOGRAM && (seen += histogram[median]) * 2 < rounds)
        median++;
    used += shared->peer_cpu;
    printf("{\"bytes\": %llu, \"ios\": %llu, \"seconds\": %.6f, \"cpu_s\": %.6f, \"p50_us\": %.1f, \"mean_us\": %.2f}\n",
           rounds * answer, rounds, took, used, median / 10.0, took / rounds * 1e6);
}

/* Makes a socket of another network namespace, whose address it sets, and comes back. */
static int elsewhere(const char *named, struct sockaddr_in *address)
{
    char path[128], name[64], ip[32];
    if (sscanf(named, "%63[^,],%31s", name, ip) != 2 || inet_pton(AF_INET, ip, &address->sin_addr) != 1)
        fail("NETNS=NAME,ADDRESS");
    snprintf(path, sizeof path, "/run/netns/%s", name);
    int here = open("/proc/self/ns/net", O_RDONLY), there = open(path, O_RDONLY);
    if (here < 0 || there < 0 || setns(there, CLONE_NEWNET))
        fail(path);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (setns(here, CLONE_NEWNET))
        fail("setns");
    return fd;
}

int main(int argc, char **argv)
{
    int answering = -1, asking = -1;
    if (argc == 6 && sscanf(argv[4], "%d,%d", &answering, &asking) == 2)
        argc = 5, argv[4] = argv[5];
    if (argc != 5) {
        fprintf(stderr, "tcp_raw stream|zerocopy BYTES CONNECTIONS SECONDS | tcp_raw pingpong ASK ANSWER [CPU,CPU] SECONDS\n");
        return 2;
    }
    zerocopy = !strcmp(argv[1], "zerocopy");
    int streams = zerocopy || !strcmp(argv[1], "stream"), count = streams ? atoi(argv[3]) : 1;
    double seconds = atof(argv[4]);
    ask = strtoul(argv[2], NULL, 10), answer = streams ? 0 : strtoul(argv[3], NULL, 10);
    if (!ask || count < 1 || count > CONNECTIONS_MAX || seconds <= 0)
        return 2;
    if (getenv("SPAN") && strtoull(getenv("SPAN"), NULL, 10) > ask)
        spans = strtoull(getenv("SPAN"), NULL, 10) / ask;
    if (getenv("SLOTS") && atoi(getenv("SLOTS")) > 0)
        slots = atoi(getenv("SLOTS"));
    signal(SIGPIPE, SIG_IGN);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    const char *netns = getenv("NETNS");
    int listener = netns ? elsewhere(netns, &address) : unpaced(socket(AF_INET, SOCK_STREAM, 0)), fds[CONNECTIONS_MAX];
    if (listener < 0 || bind(listener, (void *)&address, length) || listen(listener, CONNECTIONS_MAX) ||
        getsockname(listener, (void *)&address, &length))
        fail("listen");
    pid_t child = fork();
    if (child < 0)
        fail("fork");
    if (child == 0) {
        if (answering >= 0)
            stay_on(answering);
        for (int i = 0; i < count; i++)
            if ((fds[i] = accept(listener, NULL, NULL)) < 0)
                fail("accept");
            else
                tune(fds[i]);
        double cpu = cpu_now();
        each(streams ? sender : responder, fds, count);
        shared->peer_cpu = cpu_now() - cpu;
        return 0;
    }
    if (asking >= 0)
        stay_on(asking);
    for (int i = 0; i < count; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        if ((netns ? fds[i] : unpaced(fds[i])) < 0 || connect(fds[i], (void *)&address, length))
            fail("connect");
        tune(fds[i]);
    }
    if (streams)
        stream(fds, count, seconds);
    else
        pingpong(fds[0], seconds);
    return 0;
}
