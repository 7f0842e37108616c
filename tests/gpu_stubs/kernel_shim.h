/* CUDA's built-ins for a kernel that the host runs: thread by thread, block by block. A kernel that needs its threads at
 * the same time (__syncthreads, shuffles) doesn't link; Forebay's leave such parts out where __CUDACC__ is absent. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define __global__ __attribute__((visibility("default")))
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline
#define __restrict__ restrict

struct forebay_dim3 {
    unsigned x, y, z;
};
static __thread struct forebay_dim3 threadIdx, blockIdx, blockDim, gridDim;

typedef void (*forebay_kernel)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                               uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

/* More arguments than the kernel takes do no harm: the caller clears them away. */
__attribute__((visibility("default"))) void forebay_stub_run(forebay_kernel kernel, const uint64_t *a, const unsigned *grid,
                                                             const unsigned *threads)
{
    gridDim = (struct forebay_dim3){grid[0], grid[1], grid[2]};
    blockDim = (struct forebay_dim3){threads[0], threads[1], threads[2]};
    for (uint64_t block = 0; block < (uint64_t)grid[0] * grid[1] * grid[2]; block++)
        for (unsigned thread = 0; thread < threads[0] * threads[1] * threads[2]; thread++) {
            blockIdx = (struct forebay_dim3){(unsigned)(block % grid[0]), (unsigned)(block / grid[0] % grid[1]),
                                             (unsigned)(block / grid[0] / grid[1])};
            threadIdx = (struct forebay_dim3){thread % threads[0], thread / threads[0] % threads[1],
                                              thread / threads[0] / threads[1]};
            kernel(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15]);
        }
}
