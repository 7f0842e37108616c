// Seeded content (crates/model/src/content.rs) in device memory: checking and
// filling. A warp takes a block of 4 KiB; each lane 16 bytes of each 512.

#define BLOCK_BYTES 4096ull
#define MAGIC 0x3159414245524F46ull
#define STREAM_STEP 0x9E3779B97F4A7C15ull
#define STEPS 8

// Device memory, and what it holds. 64 bytes, as the host lays it out.
struct range {
    u64 at;
    u64 bytes;
    u64 seed;
    u64 file;
    // Of the first byte, in the file.
    u64 offset;
    // The hash of seed and file, which the host computes once.
    u64 base;
    // Found: blocks with a wrong byte, and where the first of them begins in the file.
    u64 blocks_bad;
    u64 first_bad;
};

INLINE u64 mix(u64 word)
{
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ull;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBull;
    return word ^ (word >> 31);
}

// The stream's word, of the value that is its place.
INLINE u64 scrambled(u64 value)
{
    return value ^ (value >> 32);
}

// Word `index` of the block at `start`: five words of header, then the stream.
INLINE u64 word_of(const struct range *range, u64 start, u64 key, u32 index)
{
    switch (index) {
    case 0: return MAGIC;
    case 1: return range->seed;
    case 2: return range->file;
    case 3: return start;
    case 4: return key;
    default: return scrambled(key + STREAM_STEP * index);
    }
}

INLINE words2 pair_of(const struct range *range, u64 start, u64 key, u64 value, u32 lane, u32 step)
{
    words2 pair;
    if (step == 0 && lane < 3) {
        pair.x = word_of(range, start, key, 2 * lane);
        pair.y = word_of(range, start, key, 2 * lane + 1);
    } else {
        pair.x = scrambled(value);
        pair.y = scrambled(value + STREAM_STEP);
    }
    return pair;
}

INLINE int lane_differs(const struct range *range, u64 start, u64 key, u32 lane)
{
    const words2 *found = (const words2 *)(range->at + (start - range->offset)) + lane;
    words2 held[STEPS];
    u64 value = key + STREAM_STEP * (2 * lane);
    u64 wrong = 0;
    UNROLL(STEPS)
    for (u32 step = 0; step < STEPS; ++step)
        held[step] = found[step * LANES];
    UNROLL(STEPS)
    for (u32 step = 0; step < STEPS; ++step) {
        words2 right = pair_of(range, start, key, value, lane, step);
        wrong |= (held[step].x ^ right.x) | (held[step].y ^ right.y);
        value += STREAM_STEP * (2 * LANES);
    }
    return wrong != 0;
}

INLINE void lane_fills(const struct range *range, u64 start, u64 key, u32 lane)
{
    words2 *to = (words2 *)(range->at + (start - range->offset)) + lane;
    u64 value = key + STREAM_STEP * (2 * lane);
    UNROLL(STEPS)
    for (u32 step = 0; step < STEPS; ++step) {
        to[step * LANES] = pair_of(range, start, key, value, lane, step);
        value += STREAM_STEP * (2 * LANES);
    }
}

// The bytes of the block at `start` that the range has.
struct part {
    u64 from;
    u64 to;
    // All of them, where 16 bytes can be loaded at once.
    int whole;
};

INLINE struct part part_of(const struct range *range, u64 start)
{
    struct part part;
    u64 end = range->offset + range->bytes;
    part.from = start < range->offset ? range->offset - start : 0;
    part.to = end - start < BLOCK_BYTES ? end - start : BLOCK_BYTES;
    part.whole = part.from == 0 && part.to == BLOCK_BYTES && (range->at + (start - range->offset)) % 16 == 0;
    return part;
}

INLINE u8 byte_of(const struct range *range, u64 start, u64 key, u64 inside)
{
    return (u8)(word_of(range, start, key, (u32)(inside / 8)) >> (inside % 8 * 8));
}

INLINE int part_differs(const struct range *range, u64 start, u64 key, struct part part, u32 lane)
{
    const u8 *found = (const u8 *)(range->at + (start - range->offset));
    int wrong = 0;
    for (u64 inside = part.from + lane; inside < part.to; inside += LANES)
        wrong |= found[inside] != byte_of(range, start, key, inside);
    return wrong;
}

INLINE void part_fills(const struct range *range, u64 start, u64 key, struct part part, u32 lane)
{
    u8 *to = (u8 *)(range->at + (start - range->offset));
    for (u64 inside = part.from + lane; inside < part.to; inside += LANES)
        to[inside] = byte_of(range, start, key, inside);
}

// The grid is a multiple of `count`: each range has as many blocks of threads as the others.
#define EACH_BLOCK_OF(range, count, start)                                                              \
    u64 warps_ = gridDim.x / (u32)(count) * WARPS_OF_BLOCK;                                             \
    u64 end_ = (range)->offset + (range)->bytes;                                                        \
    u64 warp_ = blockIdx.x / (u32)(count) * WARPS_OF_BLOCK + WARP_OF_BLOCK;                             \
    for (u64 start = (range)->offset / BLOCK_BYTES * BLOCK_BYTES + warp_ * BLOCK_BYTES; start < end_;   \
         start += warps_ * BLOCK_BYTES)

extern "C" __global__ void content_check(struct range *ranges, u64 count)
{
    if (IDLE)
        return;
    struct range *range = ranges + blockIdx.x % (u32)count;
    u64 blocks_bad = 0;
    u64 first_bad = ~0ull;
    EACH_BLOCK_OF(range, count, start) {
        u64 key = mix(range->base ^ start);
        struct part part = part_of(range, start);
        int wrong = 0;
        EACH_LANE(lane)
            wrong |= part.whole ? lane_differs(range, start, key, lane)
                                : part_differs(range, start, key, part, lane);
        if (WARP_ANY(wrong)) {
            ++blocks_bad;
            first_bad = first_bad < start ? first_bad : start;
        }
    }
    if (blocks_bad && LEADS) {
        ATOMIC_ADD(&range->blocks_bad, blocks_bad);
        ATOMIC_MIN(&range->first_bad, first_bad);
    }
}

extern "C" __global__ void content_fill(struct range *ranges, u64 count)
{
    if (IDLE)
        return;
    const struct range *range = ranges + blockIdx.x % (u32)count;
    EACH_BLOCK_OF(range, count, start) {
        u64 key = mix(range->base ^ start);
        struct part part = part_of(range, start);
        EACH_LANE(lane) {
            if (part.whole)
                lane_fills(range, start, key, lane);
            else
                part_fills(range, start, key, part, lane);
        }
    }
}
