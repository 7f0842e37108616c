// Rows in host memory that the device may read, each to its place in device
// memory: of a table by their numbers, or pieces from wherever they lie. As many lanes as a row keeps busy take one; the others of their
// warp take the rows beside it.

// What stands for a row that comes another way.
#define ELSEWHERE 0xffffffffffffffffull
// Reads that a lane has under way: the link answers each after a microsecond or two.
#define AHEAD 8

#define COPY(word, to, from, bytes, lane, lanes)                                    \
    do {                                                                            \
        word held[AHEAD];                                                           \
        const word *source = (const word *)(from);                                  \
        word *target = (word *)(to);                                                \
        u64 words = (bytes) / sizeof(word), at = (lane);                            \
        for (; at + (AHEAD - 1) * (lanes) < words; at += AHEAD * (lanes)) {         \
            UNROLL(AHEAD)                                                           \
            for (u32 i = 0; i < AHEAD; ++i)                                         \
                held[i] = source[at + i * (lanes)];                                 \
            UNROLL(AHEAD)                                                           \
            for (u32 i = 0; i < AHEAD; ++i)                                         \
                target[at + i * (lanes)] = held[i];                                 \
        }                                                                           \
        for (; at < words; at += (lanes))                                           \
            target[at] = source[at];                                                \
    } while (0)

INLINE void copy_row(u8 *to, const u8 *from, u64 bytes, u32 lane, u32 lanes)
{
    u64 odd = (u64)to | (u64)from | bytes;
    if (odd % 16 == 0)
        COPY(words4, to, from, bytes, lane, lanes);
    else if (odd % 4 == 0)
        COPY(u32, to, from, bytes, lane, lanes);
    else
        COPY(u8, to, from, bytes, lane, lanes);
}

// Row i of `rows` lies at base + numbers[i] * step and goes to to + i * row_bytes. `lanes` is a power of two.
extern "C" __global__ void rows_gather(const u8 *base, u64 step, const u64 *numbers, u8 *to, u64 rows, u64 row_bytes, u64 lanes)
{
    if (IDLE)
        return;
    u64 side_by_side = LANES / lanes;
    u64 first = ((u64)blockIdx.x * WARPS_OF_BLOCK + WARP_OF_BLOCK) * side_by_side;
    u64 stride = (u64)gridDim.x * WARPS_OF_BLOCK * side_by_side;
    EACH_LANE(lane) {
        for (u64 row = first + lane / lanes; row < rows; row += stride) {
            u64 number = numbers[row];
            if (number != ELSEWHERE)
                copy_row(to + row * row_bytes, base + number * step, row_bytes, lane % (u32)lanes, (u32)lanes);
        }
    }
}

// `count` pieces, each three words of the list: where it lies, where it goes, how long it is. `lanes` as above.
extern "C" __global__ void rows_scatter(const u64 *list, u64 count, u64 lanes)
{
    if (IDLE)
        return;
    u64 side_by_side = LANES / lanes;
    u64 first = ((u64)blockIdx.x * WARPS_OF_BLOCK + WARP_OF_BLOCK) * side_by_side;
    u64 stride = (u64)gridDim.x * WARPS_OF_BLOCK * side_by_side;
    EACH_LANE(lane) {
        for (u64 i = first + lane / lanes; i < count; i += stride) {
            const u64 *piece = list + i * 3;
            copy_row((u8 *)piece[1], (const u8 *)piece[0], piece[2], lane % (u32)lanes, (u32)lanes);
        }
    }
}

// One piece that all lanes take together. Both places and its length are whole words4.
extern "C" __global__ void rows_pull(const u8 *from, u8 *to, u64 bytes)
{
    if (IDLE)
        return;
    u32 lanes = gridDim.x * WARPS_OF_BLOCK * LANES;
    u32 first = (blockIdx.x * WARPS_OF_BLOCK + WARP_OF_BLOCK) * LANES;
    EACH_LANE(lane)
        copy_row(to, from, bytes, first + lane, lanes);
}

INLINE u64 number_of(const u8 *given, u64 i, u64 bytes_each, u64 is_signed)
{
    if (bytes_each == 8)
        return ((const u64 *)given)[i];
    if (bytes_each == 4)
        return is_signed ? (u64)(long long)((const int *)given)[i] : ((const u32 *)given)[i];
    if (bytes_each == 2)
        return is_signed ? (u64)(long long)((const short *)given)[i] : ((const unsigned short *)given)[i];
    return is_signed ? (u64)(long long)((const signed char *)given)[i] : given[i];
}

// `count` numbers of whatever integers become words behind the first of `out`, which counts those that are negative, or
// `limit` or more.
extern "C" __global__ void rows_numbers(const u8 *given, u64 bytes_each, u64 is_signed, u64 count, u64 limit, u64 *out)
{
    if (IDLE)
        return;
    u64 first = ((u64)blockIdx.x * WARPS_OF_BLOCK + WARP_OF_BLOCK) * LANES;
    u64 stride = (u64)gridDim.x * WARPS_OF_BLOCK * LANES;
    EACH_LANE(lane) {
        for (u64 i = first + lane; i < count; i += stride) {
            u64 number = number_of(given, i, bytes_each, is_signed);
            out[1 + i] = number;
            // Negative ones are beyond every limit, without their sign.
            if (number >= limit)
                ATOMIC_ADD(out, 1ull);
        }
    }
}

// The round function of crates/model/src/feed.rs.
INLINE u32 scramble(u32 half, u32 key)
{
    u32 word = (half ^ key) * 0x9E3779B1u;
    word ^= word >> 15;
    word *= 0x85EBCA77u;
    return word ^ word >> 13;
}

INLINE u64 mixed(u64 word)
{
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9ull;
    word = (word ^ word >> 27) * 0x94D049BB133111EBull;
    return word ^ word >> 31;
}

#define ROUND(keys)                                              \
    do {                                                         \
        high ^= scramble(low, (u32)(keys)) & high_mask;          \
        low ^= scramble(high, (u32)((keys) >> 32)) & low_mask;   \
    } while (0)

// The samples at `count` positions from `first` on of a permutation of `n`, as words behind the first of `out`; `sum` grows by the
// hash of each. `keys`: two of a round, the first in the low half.
extern "C" __global__ void rows_order(u64 n, u64 low_bits, u64 high_bits, u64 keys0, u64 keys1, u64 keys2, u64 first, u64 count,
                                      u64 identity, u64 hash_key, u64 *out, u64 *sum)
{
    if (IDLE)
        return;
    u32 low_mask = 0xffffffffu >> (32 - low_bits), high_mask = 0xffffffffu >> (32 - high_bits);
    u64 begin = ((u64)blockIdx.x * WARPS_OF_BLOCK + WARP_OF_BLOCK) * LANES;
    u64 stride = (u64)gridDim.x * WARPS_OF_BLOCK * LANES;
    EACH_LANE(lane) {
        u64 own = 0;
        for (u64 i = begin + lane; i < count; i += stride) {
            u64 number = first + i;
            do {
                u32 low = (u32)number & low_mask, high = (u32)(number >> low_bits) & high_mask;
                ROUND(keys0);
                ROUND(keys1);
                ROUND(keys2);
                number = (u64)high << low_bits | low;
            } while (number >= n);
            out[1 + i] = number;
            own += mixed(mixed(identity + number) ^ (hash_key + (first + i) * 0x9E3779B97F4A7C15ull));
        }
        if (own)
            ATOMIC_ADD(sum, own);
    }
}
