/* Level `amx`: bfloat16 and int8 with the tile registers of AMX. Four tiles have the sums of 32 rows x 32 columns. A word is what a row of
 * a tile holds, 64 bytes; its weights are two tiles, each of 16 columns, in which four bytes of adjacent inputs stay together. */
#include "compiler.h"
#if defined(__x86_64__) && KNOWS_AMX
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,avx512bf16,amx-tile,amx-bf16,amx-int8,prefer-vector-width=512")
#define WIDTH 16
#include "x86.h"

#include "amx_tiles.h"
#include "vectors.h"
#include <string.h>

enum { ROWS = 2 * TILE_ROWS, WORD_BYTES = 64, WORD = WORD_BYTES / sizeof(uint16_t), INT8_WORD = WORD_BYTES };
enum { PART_BYTES = 32 << 10, BLOCK_ROWS = 256, PACKED_ROWS = 2 };

/* Lines of the next weights that are fetched with a word. */
INLINE void prefetch_lines(Prefetch *ahead) {
    for (int64_t byte = 0; byte < ahead->step; byte += CACHE_LINE) __builtin_prefetch(ahead->start + byte, 0, 2);
    ahead->start += ahead->step;
}

/* is_pair: 32 rows instead of 16. Streaming loads for the rows, so that the panel stays in the L1 cache. */
INLINE void multiply_tiles(const uint8_t *a, const uint8_t *b, int64_t words, void *sums, int64_t stride, int add, Prefetch ahead, const int is_pair, const int is_int8) {
    uint8_t *left = sums, *right = left + WORD_BYTES, *lower_left = left + TILE_ROWS * stride, *lower_right = lower_left + WORD_BYTES;
    if (add) {
        _tile_loadd(0, left, stride);
        _tile_loadd(1, right, stride);
        if (is_pair) {
            _tile_loadd(2, lower_left, stride);
            _tile_loadd(3, lower_right, stride);
        }
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (; words > 0; words--, a += ROWS * WORD_BYTES, b += PANEL * WORD_BYTES) {
        _tile_stream_loadd(4, a, WORD_BYTES);
        if (is_pair) _tile_stream_loadd(5, a + TILE_BYTES, WORD_BYTES);
        _tile_loadd(6, b, WORD_BYTES);
        _tile_loadd(7, b + TILE_BYTES, WORD_BYTES);
        if (is_int8) {
            _tile_dpbssd(0, 4, 6);
            _tile_dpbssd(1, 4, 7);
            if (is_pair) _tile_dpbssd(2, 5, 6);
            if (is_pair) _tile_dpbssd(3, 5, 7);
        } else {
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            if (is_pair) _tile_dpbf16ps(2, 5, 6);
            if (is_pair) _tile_dpbf16ps(3, 5, 7);
        }
        prefetch_lines(&ahead);
    }
    _tile_stored(0, left, stride);
    _tile_stored(1, right, stride);
    if (is_pair) {
        _tile_stored(2, lower_left, stride);
        _tile_stored(3, lower_right, stride);
    }
}

static void multiply(const void *a, const void *b, int64_t words, void *sums, int64_t stride, int64_t count, int add, const Prefetch *ahead) {
    if (count > TILE_ROWS) multiply_tiles(a, b, words, sums, stride * sizeof(float), add, *ahead, 1, 0);
    else multiply_tiles(a, b, words, sums, stride * sizeof(float), add, *ahead, 0, 0);
}

static void multiply_int8(const void *a, const void *b, int64_t words, void *sums, int64_t stride, int64_t count, int add, const Prefetch *ahead) {
    if (count > TILE_ROWS) multiply_tiles(a, b, words, sums, stride * sizeof(int32_t), add, *ahead, 1, 1);
    else multiply_tiles(a, b, words, sums, stride * sizeof(int32_t), add, *ahead, 0, 1);
}

/* `count` values of a row, at most a vector; the others are 0. */
INLINE vfloat load_some(const float *from, int64_t count) { return count >= WIDTH ? load(from) : load_tail(from, count); }

/* Rows that do not exist are not written: the sums of a row depend on that row alone. */
static void pack(const Rows *rows, const float *smooth_scales, void *out, float *scales) {
    (void)smooth_scales, (void)scales; /* bfloat16 has the range of float32: rows are rounded to nearest even and not scaled */
    for (int64_t r = 0; r < rows->count; r++) {
        const float *from = rows->start + r * rows->stride;
        uint8_t *to = (uint8_t *)out + r * WORD_BYTES;
        for (int64_t c = 0; c < rows->width; c += WORD, to += ROWS * WORD_BYTES) {
            const int64_t left = rows->width - c;
            const vfloat low = load_some(from + c, left), high = left > WIDTH ? load_some(from + c + WIDTH, left - WIDTH) : splat(0.0f);
            *(vint_unaligned *)to = (vint)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
        }
    }
}

typedef int8_t vbytes __attribute__((vector_size(WIDTH)));

INLINE vfloat smoothed(const float *row, const float *smooth_scales, int64_t c, int64_t width) {
    const vfloat value = load_some(row + c, width - c);
    return smooth_scales ? value * load_some(smooth_scales + c, width - c) : value;
}

static void pack_int8(const Rows *rows, const float *smooth_scales, void *out, float *scales) {
    const int64_t width = rows->width;
    for (int64_t r = 0; r < rows->count; r++) {
        const float *from = rows->start + r * rows->stride;
        uint8_t *to = (uint8_t *)out + r * WORD_BYTES;
        vfloat maxima = {0};
        for (int64_t c = 0; c < width; c += WIDTH) maxima = larger_absolute(absolute(smoothed(from, smooth_scales, c, width)), maxima);
        const float largest = max_absolute_lane(maxima), factor = largest > 1e-30f ? 127.0f / largest : 0.0f;
        scales[r] = largest / 127.0f;
        for (int64_t c = 0; c < divide_up(width, INT8_WORD) * INT8_WORD; c += WIDTH) {
            vbytes bytes = {0};
            if (c < width) bytes = __builtin_convertvector((vint)_mm512_cvtps_epi32((__m512)(smoothed(from, smooth_scales, c, width) * splat(factor))), vbytes);
            memcpy(to + c / INT8_WORD * ROWS * WORD_BYTES + c % INT8_WORD, &bytes, WIDTH);
        }
    }
}

const Product cenote_amx_bfloat16 = {ROWS, PANEL, WORD, sizeof(uint16_t), PART_BYTES, multiply, pack, .block_rows = BLOCK_ROWS, .packed_rows = PACKED_ROWS};
const Product cenote_amx_int8 = {ROWS, PANEL, INT8_WORD, 1, PART_BYTES, multiply_int8, pack_int8, .block_rows = BLOCK_ROWS, .packed_rows = PACKED_ROWS};
const TileKernels cenote_amx_tiles = {amx_begin, amx_end, cenote_amx_attention_bytes, cenote_amx_attend, &cenote_amx_layers};
#endif
