// CRC32C of device memory. A checksum is the remainder of one long polynomial,
// so pieces are computed apart and put together by multiplying each with the
// power of x that its place stands for.
//
// A warp reads rows of 512 bytes; a lane 16 of them, in which each word of 32
// bits has an accumulator of its own: shifted by a row (four look-ups in tables)
// and the next word added. What the ends lack of a row counts as zeroes: in
// front they change nothing, behind the host takes their power of x out again.

#define ROW_BYTES 512u
#define SHIFT_WORDS 1024u
#define AHEAD 4u
#define POLYNOMIAL 0x82F63B78u

// Product of two polynomials modulo CRC32C's, lowest power in the highest bit.
INLINE u32 product(u32 a, u32 b)
{
    u32 sum = 0;
    for (int bit = 31; bit >= 0; --bit) {
        sum ^= (a >> bit & 1) ? b : 0;
        b = b >> 1 ^ ((b & 1) ? POLYNOMIAL : 0);
    }
    return sum;
}

// By a row: 4096 bits.
INLINE u32 shifted(const u32 *shift, u32 x)
{
    return shift[x & 255] ^ shift[256 + (x >> 8 & 255)] ^ shift[512 + (x >> 16 & 255)] ^ shift[768 + (x >> 24)];
}

INLINE void take(const u32 *shift, words4 *sum, words4 row)
{
    sum->x = shifted(shift, sum->x) ^ row.x;
    sum->y = shifted(shift, sum->y) ^ row.y;
    sum->z = shifted(shift, sum->z) ^ row.z;
    sum->w = shifted(shift, sum->w) ^ row.w;
}

// Four words that lie partly or wholly outside [from, to): byte by byte, zero for what is outside.
INLINE words4 at_the_edge(u64 vector, u64 from, u64 to)
{
    u32 word[4] = {0, 0, 0, 0};
    for (u32 i = 0; i < 16; ++i)
        if (vector + i >= from && vector + i < to)
            word[i / 4] |= (u32) * (const u8 *)(vector + i) << (i % 4 * 8);
    words4 all = {word[0], word[1], word[2], word[3]};
    return all;
}

struct span {
    // Bytes, and the rows that they touch; the first row begins at `rows_at`, aligned to 16 bytes.
    u64 from, to, rows_at, rows;
};

INLINE words4 row_of(struct span span, u64 row, u32 lane)
{
    u64 vector = span.rows_at + row * ROW_BYTES + lane * 16;
    if (vector >= span.from && vector + 16 <= span.to)
        return *(const words4 *)vector;
    return at_the_edge(vector, span.from, span.to);
}

INLINE u32 lane_sum(struct span span, u64 row, u64 end, const u32 *shift, const u32 *places, u32 lane)
{
    words4 sum = {0, 0, 0, 0};
    // Rows within are loaded without a look at where the bytes end.
    u64 within = end < span.rows ? end : span.rows - 1;
    for (; row < end && row < 1; ++row)
        take(shift, &sum, row_of(span, row, lane));
    for (; row + AHEAD <= within; row += AHEAD) {
        const words4 *from = (const words4 *)(span.rows_at + row * ROW_BYTES) + lane;
        words4 held[AHEAD];
        UNROLL(AHEAD)
        for (u32 i = 0; i < AHEAD; ++i)
            held[i] = from[i * (ROW_BYTES / 16)];
        UNROLL(AHEAD)
        for (u32 i = 0; i < AHEAD; ++i)
            take(shift, &sum, held[i]);
    }
    for (; row < end; ++row)
        take(shift, &sum, row_of(span, row, lane));
    places += lane * 4;
    return product(sum.x, places[0]) ^ product(sum.y, places[1]) ^ product(sum.z, places[2]) ^
           product(sum.w, places[3]);
}

// tables: 1024 words that shift by a row, then 128 places of a row's words. powers: of each warp's rows, counted
// from the end. Adds to `sum` the remainder of [at, at + bytes), as if it ended with its last row.
extern "C" __global__ void crc32c_sum(u64 at, u64 bytes, u64 rows_each, const u32 *tables, const u32 *powers, u32 *sum)
{
    SHARED_TABLE(shift, tables, SHIFT_WORDS);
    if (IDLE)
        return;
    struct span span;
    span.from = at;
    span.to = at + bytes;
    span.rows_at = at & ~15ull;
    span.rows = (span.to - span.rows_at + ROW_BYTES - 1) / ROW_BYTES;
    u64 warp = (u64)blockIdx.x * WARPS_OF_BLOCK + WARP_OF_BLOCK;
    if (warp * rows_each >= span.rows)
        return;
    u64 end = span.rows - warp * rows_each;
    u64 begin = end > rows_each ? end - rows_each : 0;
    u32 part = 0;
    EACH_LANE(lane)
        part ^= lane_sum(span, begin, end, shift, tables + SHIFT_WORDS, lane);
    part = WARP_XOR(part);
    if (LEADS)
        ATOMIC_XOR(sum, product(part, powers[warp]));
}
