/* Devices, their primary contexts, and the texts of errors. */
#define _GNU_SOURCE
#include "stub.h"
#include <stdio.h>
#include <string.h>

struct context stub_contexts[GPUS_MAX];
static __thread struct context *current;

struct context *stub_current(void)
{
    return current;
}

void stub_break(struct context *context, CUresult failed)
{
    pthread_mutex_lock(&stub_lock);
    if (!context->sticky)
        context->sticky = failed;
    pthread_mutex_unlock(&stub_lock);
}

CUresult stub_unknown(CUresult answer)
{
    if (current->sticky == CONTEXT_IS_DESTROYED)
        return CONTEXT_IS_DESTROYED;
    COUNT(unknown_frees, 1);
    return answer;
}

void stub_destroy_context(struct context *context)
{
    if (!context->retained || context->sticky == CONTEXT_IS_DESTROYED)
        return;
    context->sticky = CONTEXT_IS_DESTROYED;
    stub_forget_streams(context->device);
    stub_forget_memory(context->device);
    stub_forget_modules(context->device);
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
    ENTER(NOTHING);
    *version = settings.driver_version;
    return OK;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    ENTER(DRIVER);
    *count = settings.gpus;
    return OK;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER(DRIVER);
    if (ordinal < 0 || ordinal >= settings.gpus)
        return INVALID_DEVICE;
    *device = ordinal;
    return OK;
}

static CUresult known(CUdevice device)
{
    return device >= 0 && device < settings.gpus ? OK : INVALID_DEVICE;
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    ENTER(DRIVER);
    if (known(device) || length <= 0)
        return INVALID_VALUE;
    snprintf(name, (size_t)length, "Stub GPU");
    return OK;
}

/* 0000:10:00.0, 0000:11:00.0, … */
EXPORT CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device)
{
    ENTER(DRIVER);
    if (known(device) || length < 13)
        return INVALID_VALUE;
    snprintf(id, (size_t)length, "0000:%02X:00.0", 0x10 + device);
    return OK;
}

EXPORT CUresult cuDeviceGetUuid_v2(unsigned char uuid[16], CUdevice device)
{
    ENTER(DRIVER);
    if (known(device))
        return INVALID_DEVICE;
    memset(uuid, 0x50 + device, 16);
    return OK;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    ENTER(DRIVER);
    if (known(device))
        return INVALID_DEVICE;
    *bytes = settings.memory_bytes;
    return OK;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    ENTER(DRIVER);
    if (known(device))
        return INVALID_DEVICE;
    switch (attribute) {
    case 1: *value = 1024; break;           /* threads of a block */
    case 10: *value = 32; break;            /* threads of a warp */
    case 16: *value = 4; break;             /* multiprocessors */
    case 33: *value = 0x10 + device; break; /* PCI bus */
    case 40: *value = 3; break;             /* copy engines */
    case 41: *value = 1; break;             /* one address space with the host */
    case 75: *value = 9; break;             /* compute capability 9.0 */
    case 88: *value = settings.pageable > 0; break;
    case 91: *value = 1; break;             /* registered memory has the host's addresses */
    case 99: *value = 1; break;             /* registers host memory */
    case 100: *value = settings.pageable == 2; break;
    case 113: *value = settings.registers_read_only; break;
    case 118: *value = 100; break;          /* kernels see what other devices wrote before they began */
    case 124: *value = settings.dma_buf; break;
    default: *value = 0;
    }
    return attribute > 0 ? OK : INVALID_VALUE;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(void **context, CUdevice device)
{
    ENTER(DRIVER);
    if (known(device))
        return INVALID_DEVICE;
    struct context *c = &stub_contexts[device];
    pthread_mutex_lock(&stub_lock);
    c->device = device;
    c->retained = true;
    pthread_mutex_unlock(&stub_lock);
    *context = c;
    return OK;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    ENTER(DRIVER);
    return known(device);
}

/* As cudaDeviceReset in the same process does: whatever was made in the context is gone. */
EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    ENTER(DRIVER);
    if (known(device))
        return INVALID_DEVICE;
    pthread_mutex_lock(&stub_lock);
    stub_destroy_context(&stub_contexts[device]);
    pthread_mutex_unlock(&stub_lock);
    return OK;
}

EXPORT CUresult cuCtxSetCurrent(void *context)
{
    struct context *c = context;
    ENTER(DRIVER);
    if (c && (c < stub_contexts || c >= stub_contexts + settings.gpus || !c->retained))
        return INVALID_CONTEXT;
    if (c && c->sticky == CONTEXT_IS_DESTROYED)
        return CONTEXT_IS_DESTROYED;
    current = c;
    return OK;
}

EXPORT CUresult cuCtxGetCurrent(void **context)
{
    ENTER(DRIVER);
    *context = current;
    return OK;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    ENTER(CONTEXT);
    *device = current->device;
    return OK;
}

EXPORT CUresult cuCtxSynchronize(void)
{
    ENTER(CONTEXT);
    stub_drain(current->device);
    return current->sticky;
}

static const struct {
    CUresult code;
    const char *name, *meaning;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static const char *text_of(CUresult code, bool name)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code)
            return name ? errors[i].name : errors[i].meaning;
    return NULL;
}

EXPORT CUresult cuGetErrorName(CUresult code, const char **text)
{
    *text = text_of(code, true);
    return *text ? OK : INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult code, const char **text)
{
    *text = text_of(code, false);
    return *text ? OK : INVALID_VALUE;
}
