/* libibverbs, and a card on top that takes a stand-in GPU's memory: the dma-buf says where in this process it is
 * (tests/gpu_stubs/cuda_memory.c), and a card that takes host memory alone, as soft RoCE does, reads and writes it there,
 * under the GPU's own addresses. Linked to the real library, whose other calls it has by that.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

struct pd;
struct mr;
struct mr *ibv_reg_mr_iova(struct pd *pd, void *addr, size_t length, uint64_t at, int access);

struct mr *ibv_reg_dmabuf_mr(struct pd *pd, uint64_t offset, size_t length, uint64_t at, int fd, int access) {
    uint64_t place[2];
    if (pread(fd, place, sizeof place, 0) != sizeof place) return errno = EBADF, NULL;
    if (offset > place[1] || length > place[1] - offset) return errno = EINVAL, NULL;
    return ibv_reg_mr_iova(pd, (void *)(uintptr_t)(place[0] + offset), length, at, access);
}
