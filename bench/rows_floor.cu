// What the machine itself does with rows of a cached file, for bench/rows.py: `rows_floor FILE GPU`.
//
// It answers a line of JSON for a line of JSON, as bench/child.py asks. A request names row_bytes, at_once (rows of a
// batch), seconds, threads and mode:
//   kernel   one launch for a batch: the GPU reads rows out of the registered mapping, numbers lie on the GPU
//   gather   threads copy rows out of the mapping into pinned memory, and one copy per 4 MiB takes them to the GPU
//   scatter  the same, 1 MiB at a time, and a kernel takes each row of it to a place of its own
// nvcc -O3 -std=c++17 -Xcompiler -pthread -o rows_floor rows_floor.cu

#include <cuda_runtime.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

static FILE *answers;

static void must(cudaError_t code, const char *what)
{
    if (code == cudaSuccess)
        return;
    fprintf(answers, "{\"error\": \"%s: %s\"}\n", what, cudaGetErrorString(code));
    fflush(answers);
    exit(4);
}
#define MUST(call) must((call), #call)

static const int AHEAD = 4;

// Row numbers[i] of `from` goes to row places[i] (i itself without places) of `to`; a group of lanes takes one.
__global__ void move_rows(const char *__restrict__ from, const uint64_t *__restrict__ numbers,
                          const uint64_t *__restrict__ places, char *__restrict__ to, uint64_t count, unsigned row_bytes,
                          unsigned lanes)
{
    const unsigned lane = threadIdx.x % 32, side_by_side = 32 / lanes, mine = lane % lanes, words = row_bytes / 16;
    uint64_t row = ((uint64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * side_by_side + lane / lanes;
    const uint64_t stride = (uint64_t)gridDim.x * (blockDim.x / 32) * side_by_side;
    for (; row < count; row += stride) {
        const uint4 *source = (const uint4 *)(from + (numbers ? numbers[row] : row) * row_bytes);
        uint4 *target = (uint4 *)(to + (places ? places[row] : row) * row_bytes);
        unsigned word = mine;
        for (; word + (AHEAD - 1) * lanes < words; word += AHEAD * lanes) {
            uint4 held[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; ++i)
                held[i] = source[word + i * lanes];
#pragma unroll
            for (int i = 0; i < AHEAD; ++i)
                target[word + i * lanes] = held[i];
        }
        for (; word < words; word += lanes)
            target[word] = source[word];
    }
}

static unsigned lanes_for(unsigned row_bytes)
{
    unsigned lanes = 1;
    while (lanes < 32 && lanes * 16 < row_bytes)
        lanes *= 2;
    return lanes;
}

static double now()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static double cpu()
{
    rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

struct Request {
    std::string mode;
    uint64_t row_bytes, at_once, threads;
    double seconds;
};

static const size_t ROOM = 1 << 30, BATCHES = 4;
static const char *table;
static uint64_t table_bytes;
static char *target;
static int multiprocessors;
static bool registered;

static double number(const char *line, const char *key)
{
    const std::string quoted = std::string("\"") + key + "\":";
    const char *at = strstr(line, quoted.c_str());
    return at ? atof(at + quoted.size()) : 0;
}

static void answer(double seconds, double cpu_s, uint64_t rows, uint64_t row_bytes)
{
    fprintf(answers, "{\"seconds\": %.6f, \"cpu_s\": %.6f, \"ios\": %llu, \"bytes\": %llu}\n", seconds, cpu_s,
            (unsigned long long)rows, (unsigned long long)(rows * row_bytes));
    fflush(answers);
}

static std::vector<std::vector<uint64_t>> drawn(const Request &asked)
{
    std::mt19937_64 random(7);
    std::uniform_int_distribution<uint64_t> draw(0, table_bytes / asked.row_bytes - 1);
    std::vector<std::vector<uint64_t>> batches(BATCHES, std::vector<uint64_t>(asked.at_once));
    for (auto &batch : batches)
        for (auto &row : batch)
            row = draw(random);
    return batches;
}

static void by_kernel(const Request &asked)
{
    if (!registered) {
        MUST(cudaHostRegister((void *)table, table_bytes, cudaHostRegisterReadOnly | cudaHostRegisterMapped));
        registered = true;
    }
    auto batches = drawn(asked);
    uint64_t *numbers;
    const size_t bytes = asked.at_once * sizeof(uint64_t);
    MUST(cudaMalloc(&numbers, BATCHES * bytes));
    for (size_t i = 0; i < BATCHES; ++i)
        MUST(cudaMemcpy(numbers + i * asked.at_once, batches[i].data(), bytes, cudaMemcpyHostToDevice));
    cudaEvent_t done[2];
    for (auto &event : done)
        MUST(cudaEventCreateWithFlags(&event, cudaEventBlockingSync | cudaEventDisableTiming));
    const unsigned lanes = lanes_for(asked.row_bytes);
    auto run = [&](double seconds, int blocks) {
        uint64_t launches = 0;
        const double began = now();
        while (launches < 2 || now() - began < seconds) {
            if (launches >= 2)
                MUST(cudaEventSynchronize(done[launches % 2]));
            move_rows<<<blocks, 256>>>(table, numbers + launches % BATCHES * asked.at_once, nullptr, target, asked.at_once,
                                       asked.row_bytes, lanes);
            MUST(cudaGetLastError());
            MUST(cudaEventRecord(done[launches++ % 2]));
        }
        MUST(cudaDeviceSynchronize());
        return std::pair<double, uint64_t>(now() - began, launches * asked.at_once);
    };
    int best = 0;
    double fastest = 0;
    for (int each : {1, 2, 4, 8}) {
        const auto tried = run(0.03, each * multiprocessors);
        if (tried.second / tried.first > fastest) {
            fastest = tried.second / tried.first;
            best = each * multiprocessors;
        }
    }
    const double before = cpu();
    const auto measured = run(asked.seconds, best);
    answer(measured.first, cpu() - before, measured.second, asked.row_bytes);
    for (auto &event : done)
        cudaEventDestroy(event);
    MUST(cudaFree(numbers));
}

static void by_threads(const Request &asked, bool scatters)
{
    const auto batches = drawn(asked);
    const size_t slot_bytes = scatters ? 1 << 20 : 4 << 20;
    const uint64_t each = slot_bytes / asked.row_bytes, parts = asked.at_once / each;
    uint64_t *places = nullptr;
    if (scatters) {
        // Another row of the batch for each, so that no two lie side by side.
        std::vector<uint64_t> shuffled(asked.at_once);
        for (uint64_t i = 0; i < asked.at_once; ++i)
            shuffled[i] = i;
        std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937_64(9));
        MUST(cudaMalloc(&places, asked.at_once * sizeof(uint64_t)));
        MUST(cudaMemcpy(places, shuffled.data(), asked.at_once * sizeof(uint64_t), cudaMemcpyHostToDevice));
    }
    std::vector<char *> pinned(asked.threads);
    for (auto &slots : pinned)
        MUST(cudaHostAlloc((void **)&slots, 2 * slot_bytes, cudaHostAllocDefault));
    std::atomic<uint64_t> next{0}, rows{0};
    const unsigned lanes = lanes_for(asked.row_bytes);
    const double before = cpu(), began = now();
    auto work = [&](unsigned me) {
        cudaStream_t stream;
        cudaEvent_t done[2];
        MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        for (auto &event : done)
            MUST(cudaEventCreateWithFlags(&event, cudaEventBlockingSync | cudaEventDisableTiming));
        for (uint64_t turn = 0; now() - began < asked.seconds; ++turn) {
            const uint64_t part = next++, first = part % parts * each;
            const uint64_t *numbers = batches[part / parts % BATCHES].data() + first;
            char *slot = pinned[me] + turn % 2 * slot_bytes;
            if (turn >= 2)
                MUST(cudaEventSynchronize(done[turn % 2]));
            for (uint64_t i = 0; i < each; ++i) {
                if (i + 8 < each)
                    __builtin_prefetch(table + numbers[i + 8] * asked.row_bytes);
                memcpy(slot + i * asked.row_bytes, table + numbers[i] * asked.row_bytes, asked.row_bytes);
            }
            if (scatters)
                move_rows<<<32, 256, 0, stream>>>(slot, nullptr, places + first, target, each, asked.row_bytes, lanes);
            else
                MUST(cudaMemcpyAsync(target + first * asked.row_bytes, slot, each * asked.row_bytes, cudaMemcpyHostToDevice,
                                     stream));
            MUST(cudaGetLastError());
            MUST(cudaEventRecord(done[turn % 2], stream));
            rows += each;
        }
        MUST(cudaStreamSynchronize(stream));
        for (auto &event : done)
            cudaEventDestroy(event);
        cudaStreamDestroy(stream);
    };
    std::vector<std::thread> pool;
    for (unsigned i = 0; i < asked.threads; ++i)
        pool.emplace_back(work, i);
    for (auto &thread : pool)
        thread.join();
    const double took = now() - began;
    answer(took, cpu() - before, rows, asked.row_bytes);
    for (auto &slots : pinned)
        cudaFreeHost(slots);
    cudaFree(places);
}

int main(int count, char **arguments)
{
    answers = fdopen(dup(1), "w");
    if (count != 3) {
        fprintf(stderr, "rows_floor FILE GPU\n");
        return 2;
    }
    const int fd = open(arguments[1], O_RDONLY);
    struct stat found;
    if (fd < 0 || fstat(fd, &found)) {
        perror(arguments[1]);
        return 2;
    }
    table_bytes = found.st_size;
    table = (const char *)mmap(nullptr, table_bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (table == MAP_FAILED) {
        perror("mmap");
        return 2;
    }
    MUST(cudaSetDevice(atoi(arguments[2])));
    // Refused, waiting spins at the end of a run, for a batch at most.
    cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync);
    MUST(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, atoi(arguments[2])));
    MUST(cudaMalloc(&target, ROOM));
    fprintf(answers, "{\"ready\": {}}\n");
    fflush(answers);
    char line[1 << 12];
    while (fgets(line, sizeof line, stdin)) {
        Request asked{strstr(line, "\"kernel\"") ? "kernel" : strstr(line, "\"scatter\"") ? "scatter" : "gather",
                      (uint64_t)number(line, "row_bytes"), (uint64_t)number(line, "at_once"),
                      (uint64_t)number(line, "threads"), number(line, "seconds")};
        if (asked.mode == "kernel")
            by_kernel(asked);
        else
            by_threads(asked, asked.mode == "scatter");
    }
    return 0;
}
