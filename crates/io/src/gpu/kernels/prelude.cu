// What the kernels share. On a GPU the 32 lanes of a warp work on one piece of
// data together; compiled as plain C (for tests on machines without a GPU) the
// first thread of each 32 does the lanes' work in turn, and the others leave.
//
// A host that compiles this declares threadIdx, blockIdx, blockDim and gridDim.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define LANES 32u
#define WARP_OF_BLOCK (threadIdx.x / LANES)
#define WARPS_OF_BLOCK (blockDim.x / LANES)

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

typedef ulonglong2 words2;
typedef uint4 words4;
#define INLINE static __device__ __forceinline__
#define UNROLL(n) _Pragma("unroll")
#define IDLE 0
#define LEADS (threadIdx.x % LANES == 0)
#define EACH_LANE(lane) for (u32 lane = threadIdx.x % LANES, once = 1; once; once = 0)
#define WARP_ANY(x) __any_sync(0xffffffffu, (x))
#define WARP_XOR(x) warp_xor(x)
#define ATOMIC_ADD(at, x) atomicAdd((at), (x))
#define ATOMIC_MIN(at, x) atomicMin((at), (x))
#define ATOMIC_XOR(at, x) atomicXor((at), (x))

INLINE u32 warp_xor(u32 x)
{
    for (int far = 16; far; far >>= 1)
        x ^= __shfl_xor_sync(0xffffffffu, x, far);
    return x;
}

// A table that each block copies into its shared memory before it looks things up.
#define SHARED_TABLE(name, from, words)                              \
    __shared__ u32 name[words];                                      \
    for (u32 at_ = threadIdx.x; at_ < (words); at_ += blockDim.x)    \
        name[at_] = (from)[at_];                                     \
    __syncthreads()

#else

#ifndef __global__
#define __global__
#endif
typedef struct { u64 x, y; } words2;
typedef struct { u32 x, y, z, w; } words4;
#define INLINE static inline
#define UNROLL(n)
#define IDLE (threadIdx.x % LANES != 0)
#define LEADS 1
#define EACH_LANE(lane) for (u32 lane = 0; lane < LANES; ++lane)
#define WARP_ANY(x) (x)
#define WARP_XOR(x) (x)
#define ATOMIC_ADD(at, x) __atomic_fetch_add((at), (x), __ATOMIC_RELAXED)
#define ATOMIC_XOR(at, x) __atomic_fetch_xor((at), (x), __ATOMIC_RELAXED)
#define ATOMIC_MIN(at, x) plain_min((at), (x))
#define SHARED_TABLE(name, from, words) const u32 *name = (from)

static inline void plain_min(u64 *at, u64 x)
{
    u64 seen = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (x < seen && !__atomic_compare_exchange_n(at, &seen, x, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

#endif
