/* What cuFile counts of its I/O, and the calls that tell it. */
#define _GNU_SOURCE
#include "cufile.h"
#include <string.h>

struct level3 cufile_stats;
static bool counting;

void cufile_count(int gpu, ssize_t moved, bool unaligned, bool writes, enum way way)
{
    struct gpu_stats *g = &cufile_stats.gpus[gpu];
    struct level1 *b = &cufile_stats.basic;
    pthread_mutex_lock(&cufile_lock);
    if (counting) {
        struct counter *ops = writes ? &b->writes : &b->reads;
        *(moved < 0 ? &ops->failed : &ops->ok) += 1;
        uint64_t bytes = moved < 0 ? 0 : (uint64_t)moved;
        *(writes ? &b->write_bytes : &b->read_bytes) += bytes;
        *(writes ? &g->write_bytes : &g->read_bytes) += bytes;
        *(writes ? &g->writes : &g->reads) += 1;
        if (moved < 0)
            *(writes ? &g->failed_writes : &g->failed_reads) += 1;
        if (unaligned)
            *(writes ? &g->unaligned_writes : &g->unaligned_reads) += 1;
        if (way == POSIX)
            *(writes ? &g->posix_writes : &g->posix_reads) += 1;
        else if (way == NVFS)
            *(writes ? &g->nvfs_writes : &g->nvfs_reads) += 1;
        else
            *(writes ? &g->p2p_writes : &g->p2p_reads) += 1;
        static unsigned went;
        if (way != POSIX && cufile_settings.reroute && ++went % cufile_settings.reroute == 0)
            *(writes ? &g->rerouted_writes : &g->rerouted_reads) += 1;
    }
    pthread_mutex_unlock(&cufile_lock);
}

#ifndef STUB_BEFORE_1_15

static int level;

EXPORT struct status cuFileSetStatsLevel(int to)
{
    ENTER();
    if (!cufile_settings.stats || to < 0 || to > 3)
        return status(INVALID_VALUE_GIVEN);
    level = to;
    return status(DONE);
}

EXPORT struct status cuFileGetStatsLevel(int *now)
{
    ENTER();
    *now = level;
    return status(DONE);
}

EXPORT struct status cuFileStatsStart(void)
{
    ENTER();
    if (!cufile_users)
        return status(DRIVER_NOT_INITIALIZED);
    counting = level > 0;
    return status(DONE);
}

EXPORT struct status cuFileStatsStop(void)
{
    ENTER();
    counting = false;
    return status(DONE);
}

EXPORT struct status cuFileStatsReset(void)
{
    ENTER();
    pthread_mutex_lock(&cufile_lock);
    memset(&cufile_stats, 0, sizeof cufile_stats);
    pthread_mutex_unlock(&cufile_lock);
    return status(DONE);
}

static struct status tell(int wanted, void *to, size_t bytes)
{
    if (!cufile_users)
        return status(DRIVER_NOT_INITIALIZED);
    if (!to || level < wanted)
        return status(INVALID_VALUE_GIVEN);
    pthread_mutex_lock(&cufile_lock);
    cufile_stats.gpu_count = 0;
    for (int i = 0; i < 16; i++)
        if (cufile_stats.gpus[i].reads + cufile_stats.gpus[i].writes + cufile_stats.gpus[i].registered_bytes) {
            memset(cufile_stats.gpus[i].uuid, 0x50 + i, 16);
            cufile_stats.gpu_count = (uint32_t)i + 1;
        }
    memcpy(to, &cufile_stats, bytes);
    pthread_mutex_unlock(&cufile_lock);
    return status(DONE);
}

EXPORT struct status cuFileGetStatsL1(void *stats)
{
    ENTER();
    return tell(1, stats, sizeof(struct level1));
}

EXPORT struct status cuFileGetStatsL2(void *stats)
{
    ENTER();
    return tell(2, stats, offsetof(struct level3, gpu_count));
}

EXPORT struct status cuFileGetStatsL3(void *stats)
{
    ENTER();
    return tell(3, stats, sizeof(struct level3));
}

#endif
