/* Attention over packed sequences in bfloat16, on the AMX tiles of recent x86 processors.
 *
 * One unit of work is one sequence and one head of keys. Its keys and values are laid out for the tiles once; then 16
 * queries at a time meet all keys they may see, a softmax in float32 follows, and its weights meet the values.
 * Threads are those of the OpenMP library that is already in the process: this file is not linked with one of its own.
 */
#include <cpuid.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ROWS = 16, TILE_WORDS = 16 * 16, STEP = 32 }; /* a tile is 16 rows of 16 words of 4 bytes, or 32 bfloat16 */

/* Whether the processor has the tiles, and the system lets this process use them. */
int cenote_has_tiles(void) {
    const long request_permission = 0x1023, tile_data = 18;
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    int tiles = (d >> 22 & 1) && (d >> 24 & 1), avx512 = (b >> 16 & 1) && (b >> 30 & 1);
    if (!tiles || !avx512 || !__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a >> 5 & 1)) return 0; /* bfloat16 */
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16")
#include <immintrin.h>

typedef uint16_t bf16;

/* What a thread works with; sized for the longest sequence of the batch. */
typedef struct {
    uint32_t *keys;   /* per 16 keys and 32 dimensions one tile, word w of key n in row w, column n */
    uint32_t *values; /* per 32 keys and 16 dimensions one tile, keys in pairs */
    bf16 *queries;    /* [16][head_dim] */
    float *scores;    /* [16][keys] */
    bf16 *weights;    /* [16][keys] */
    float *mixed;     /* [16][head_dim] */
} Room;

static void configure_tiles(void) {
    struct {
        uint8_t palette, start_row, unused[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } layout = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) layout.row_bytes[tile] = 64, layout.rows[tile] = ROWS;
    _tile_loadconfig(&layout);
}

/* 16 rows of 16 words, columns become rows. */
static inline void transpose(const __m512i in[16], uint32_t *out) {
    __m512i a[16], b[16];
    for (int i = 0; i < 8; i++) {
        a[2 * i] = _mm512_unpacklo_epi32(in[2 * i], in[2 * i + 1]);
        a[2 * i + 1] = _mm512_unpackhi_epi32(in[2 * i], in[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) { /* b[4i + c]: column c of every group of four columns, rows 4i to 4i + 3 */
        b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
    }
    for (int c = 0; c < 4; c++) {
        __m512i even_low = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88), odd_low = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xdd);
        __m512i even_high = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88);
        __m512i odd_high = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xdd);
        _mm512_store_si512(out + 16 * c, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
        _mm512_store_si512(out + 16 * (4 + c), _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
        _mm512_store_si512(out + 16 * (8 + c), _mm512_shuffle_i32x4(even_low, even_high, 0xdd));
        _mm512_store_si512(out + 16 * (12 + c), _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
    }
}

static void pack_keys(const bf16 *keys, int64_t stride, int64_t length, int64_t padded, int64_t head_dim, uint32_t *out) {
    for (int64_t first = 0; first < padded; first += ROWS)
        for (int64_t dim = 0; dim < head_dim; dim += STEP, out += TILE_WORDS) {
            __m512i rows[16];
            for (int64_t n = 0; n < ROWS; n++)
                rows[n] = first + n < length ? _mm512_loadu_si512(keys + (first + n) * stride + dim) : _mm512_setzero_si512();
            transpose(rows, out);
        }
}

static void pack_values(const bf16 *values, int64_t stride, int64_t length, int64_t padded, int64_t head_dim, uint32_t *out) {
    for (int64_t first = 0; first < padded; first += STEP)
        for (int64_t dim = 0; dim < head_dim; dim += 16, out += TILE_WORDS)
            for (int64_t pair = 0; pair < 16; pair++) {
                int64_t key = first + 2 * pair;
                const __m256i none = _mm256_setzero_si256();
                __m256i even = key < length ? _mm256_loadu_si256((const void *)(values + key * stride + dim)) : none;
                __m256i odd = key + 1 < length ? _mm256_loadu_si256((const void *)(values + (key + 1) * stride + dim)) : none;
                __m512i words = _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
                _mm512_store_si512(out + 16 * pair, words);
            }
}

/* 2 to the power of x, for x of 0 and below. */
static inline __m512 power_of_two(__m512 x) {
    __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), part = _mm512_sub_ps(x, whole);
    __m512 y = _mm512_set1_ps(1.3333558e-3f);
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(9.6181291e-3f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(5.5504109e-2f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(2.4022651e-1f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(6.9314718e-1f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(y, whole);
}

static inline __mmask16 lanes(int64_t column, int64_t low, int64_t high) {
    int64_t from = low > column ? low - column : 0, to = high - column < 16 ? high - column : 16;
    return to <= from ? 0 : (__mmask16)(((1u << to) - 1) & ~((1u << from) - 1));
}

/* Weights of one query for the keys from `low` to `high`, zero for the rest of `begin` to `end`; returns their sum. */
static float softmax(const float *scores, bf16 *weights, int64_t begin, int64_t end, int64_t low, int64_t high, float scale) {
    const __m512 smallest = _mm512_set1_ps(-3.4e38f), factor = _mm512_set1_ps(scale);
    const int64_t whole_begin = (low + 15) / 16 * 16, whole_end = high / 16 * 16; /* no lane of these is left out */
    __m512 most = smallest, total = _mm512_setzero_ps();
    for (int64_t column = begin; column < end; column += 16) {
        const int whole = column >= whole_begin && column < whole_end;
        const __mmask16 used = whole ? 0xffff : lanes(column, low, high);
        most = _mm512_max_ps(most, _mm512_mask_load_ps(smallest, used, scores + column));
    }
    const __m512 shift = _mm512_set1_ps(_mm512_reduce_max_ps(most) * scale);
    for (int64_t column = begin; column < end; column += 16) {
        const int whole = column >= whole_begin && column < whole_end;
        const __mmask16 used = whole ? 0xffff : lanes(column, low, high);
        __m512 x = _mm512_fmsub_ps(_mm512_load_ps(scores + column), factor, shift);
        x = _mm512_maskz_mov_ps(used, power_of_two(x));
        total = _mm512_add_ps(total, x);
        _mm256_store_si256((void *)(weights + column), (__m256i)_mm512_cvtneps_pbh(x));
    }
    return _mm512_reduce_add_ps(total);
}

/* scores = queries x keys, for the keys from `begin` to `end`. */
static void compare(const Room *room, int64_t padded, int64_t head_dim, int64_t begin, int64_t end) {
    const int64_t steps = head_dim / STEP;
    for (int64_t key = begin; key < end; key += 2 * ROWS) {
        const uint32_t *tile = room->keys + key / ROWS * steps * TILE_WORDS;
        _tile_zero(0);
        _tile_zero(1);
        for (int64_t step = 0; step < steps; step++) {
            _tile_loadd(2, room->queries + step * STEP, head_dim * sizeof(bf16));
            _tile_loadd(3, tile + step * TILE_WORDS, 64);
            _tile_loadd(4, tile + (steps + step) * TILE_WORDS, 64);
            _tile_dpbf16ps(0, 2, 3);
            _tile_dpbf16ps(1, 2, 4);
        }
        _tile_stored(0, room->scores + key, padded * sizeof(float));
        _tile_stored(1, room->scores + key + ROWS, padded * sizeof(float));
    }
}

/* mixed = weights x values, for the keys from `begin` to `end`. */
static void mix(const Room *room, int64_t padded, int64_t head_dim, int64_t begin, int64_t end) {
    const int64_t columns = head_dim / 16;
    for (int64_t column = 0; column < columns; column += 2) {
        _tile_zero(0);
        _tile_zero(1);
        for (int64_t key = begin; key < end; key += STEP) {
            const uint32_t *tile = room->values + (key / STEP * columns + column) * TILE_WORDS;
            _tile_loadd(2, room->weights + key, padded * sizeof(bf16));
            _tile_loadd(3, tile, 64);
            _tile_loadd(4, tile + TILE_WORDS, 64);
            _tile_dpbf16ps(0, 2, 3);
            _tile_dpbf16ps(1, 2, 4);
        }
        _tile_stored(0, room->mixed + 16 * column, head_dim * sizeof(float));
        _tile_stored(1, room->mixed + 16 * (column + 1), head_dim * sizeof(float));
    }
}

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static void one_head(
    const bf16 *query, int64_t query_stride, bf16 *out, int64_t out_stride, const Room *room,
    int64_t length, int64_t padded, int64_t head_dim, int causal, int64_t window, float scale
) {
    for (int64_t first = 0; first < length; first += ROWS) {
        const int64_t count = smaller(ROWS, length - first), last = first + count - 1;
        for (int64_t row = 0; row < count; row++)
            memcpy(room->queries + row * head_dim, query + (first + row) * query_stride, head_dim * sizeof(bf16));
        /* the keys that any of these queries sees, in whole steps */
        const int64_t begin = larger(0, first - window) / STEP * STEP;
        const int64_t seen = causal ? last + 1 : smaller(length, last + window + 1);
        const int64_t end = (seen + STEP - 1) / STEP * STEP;
        compare(room, padded, head_dim, begin, end);
        float shares[ROWS]; /* what one unit of weight is worth */
        for (int64_t row = 0; row < count; row++) {
            const int64_t place = first + row;
            const int64_t low = larger(0, place - window), high = causal ? place + 1 : smaller(length, place + window + 1);
            shares[row] = 1.0f / softmax(room->scores + row * padded, room->weights + row * padded, begin, end, low, high, scale);
        }
        mix(room, padded, head_dim, begin, end);
        for (int64_t row = 0; row < count; row++)
            for (int64_t dim = 0; dim < head_dim; dim += 16) {
                __m512 x = _mm512_mul_ps(_mm512_load_ps(room->mixed + row * head_dim + dim), _mm512_set1_ps(shares[row]));
                _mm256_storeu_si256((void *)(out + (first + row) * out_stride + dim), (__m256i)_mm512_cvtneps_pbh(x));
            }
    }
}

static size_t rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* query, key, value: [tokens][heads][head_dim] with the given distance between tokens; out likewise, all bfloat16.
 * offsets: where each of `size` sequences starts, and the end. head_dim is a multiple of 32. Returns 0, or 1 when there
 * was no memory to work in. */
int cenote_attention(
    const bf16 *query, const bf16 *key, const bf16 *value, bf16 *out,
    int64_t query_stride, int64_t key_stride, int64_t value_stride, int64_t out_stride,
    const int64_t *offsets, int64_t size, int64_t max_length, int64_t heads, int64_t kv_heads, int64_t head_dim,
    int causal, int64_t window, float scale
) {
    const int64_t longest = (max_length + STEP - 1) / STEP * STEP, group = heads / kv_heads, units = size * kv_heads;
    const size_t packed = rounded(longest * head_dim * sizeof(bf16)), queries = rounded(ROWS * head_dim * sizeof(bf16));
    const size_t scores = rounded(ROWS * longest * sizeof(float)), weights = rounded(ROWS * longest * sizeof(bf16));
    const size_t mixed = rounded(ROWS * head_dim * sizeof(float));
    const float in_twos = scale * 1.44269504f; /* log2(e) */
    int64_t next = 0; /* units are taken one by one, so that a long sequence holds up nobody */
#pragma omp parallel
    {
        uint8_t *memory = aligned_alloc(64, 2 * packed + queries + scores + weights + mixed);
        if (memory != NULL) {
            const Room room = {
                .keys = (uint32_t *)memory,
                .values = (uint32_t *)(memory + packed),
                .queries = (bf16 *)(memory + 2 * packed),
                .scores = (float *)(memory + 2 * packed + queries),
                .weights = (bf16 *)(memory + 2 * packed + queries + scores),
                .mixed = (float *)(memory + 2 * packed + queries + scores + weights),
            };
            memset(room.queries, 0, queries);
            memset(room.weights, 0, weights);
            configure_tiles();
            for (int64_t unit; (unit = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < units;) {
                const int64_t start = offsets[unit / kv_heads], kv_head = unit % kv_heads;
                const int64_t length = offsets[unit / kv_heads + 1] - start, padded = (length + STEP - 1) / STEP * STEP;
                const int64_t place = kv_head * head_dim;
                pack_keys(key + start * key_stride + place, key_stride, length, padded, head_dim, room.keys);
                pack_values(value + start * value_stride + place, value_stride, length, padded, head_dim, room.values);
                for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
                    one_head(
                        query + start * query_stride + head * head_dim, query_stride,
                        out + start * out_stride + head * head_dim, out_stride, &room,
                        length, padded, head_dim, causal, window, in_twos
                    );
            }
            _tile_release();
            free(memory);
        }
    }
    return next < units;
}
