/* Float32 products of x86-64 levels: tiles of ROWS rows (6 or 12) and two vectors of columns; parts of PART_BYTES bytes. Weights that
 * are not in the L1 cache are fetched into it AHEAD_WORDS words ahead: those of every tile if EXCEEDS_L1, otherwise those of the first.
 * UNROLLED_WORDS (a constant, since pragmas do not expand macros) is 1 where the multiplications of a word take longer than its other instructions. */
#include "vectors.h"
#include <string.h>

enum { READS_AHEAD = 1, PREFETCHES = 2 }; /* what a loop does while it multiplies; constants, so that the others have no such instructions */

INLINE void prefetch_word(const float *word) {
    for (int c = 0; c < 2 * WIDTH; c += CACHE_LINE / (int)sizeof(float)) __builtin_prefetch(word + c, 0, 3);
}

INLINE void multiply_rows(const float *a, const float *b, int64_t words, float *sums, int64_t stride, int add, Prefetch ahead, const int rows, const int does) {
    vfloat c[ROWS][2];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) c[r][j] = add ? load(sums + r * stride + WIDTH * j) : splat(0.0f);
#pragma GCC unroll UNROLLED_WORDS
    for (; words > 0; words--, a += ROWS, b += 2 * WIDTH) {
        const vfloat left = load(b), right = load(b + WIDTH);
        if (does & READS_AHEAD) prefetch_word(b + AHEAD_WORDS * 2 * WIDTH);
        if (does & PREFETCHES) prefetch_step(&ahead);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            const vfloat row = splat(a[r]);
            c[r][0] += row * left;
            c[r][1] += row * right;
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) store(sums + r * stride + WIDTH * j, c[r][j]);
}

INLINE void multiply_tile(const void *a, const void *b, int64_t words, void *sums, int64_t stride, int64_t count, int add, Prefetch ahead, const int does) {
    if (count > 2 * ROWS / 3) multiply_rows(a, b, words, sums, stride, add, ahead, ROWS, does);
    else if (count > ROWS / 3) multiply_rows(a, b, words, sums, stride, add, ahead, 2 * ROWS / 3, does);
    else multiply_rows(a, b, words, sums, stride, add, ahead, ROWS / 3, does);
}

static void multiply(const void *a, const void *b, int64_t words, void *sums, int64_t stride, int64_t count, int add, const Prefetch *ahead) {
    const int reads_ahead = EXCEEDS_L1 || ahead->is_first;
    if (reads_ahead && ahead->step) multiply_tile(a, b, words, sums, stride, count, add, *ahead, READS_AHEAD | PREFETCHES);
    else if (reads_ahead) multiply_tile(a, b, words, sums, stride, count, add, *ahead, READS_AHEAD);
    else if (ahead->step) multiply_tile(a, b, words, sums, stride, count, add, *ahead, PREFETCHES);
    else multiply_tile(a, b, words, sums, stride, count, add, *ahead, 0);
}

/* Transpose `tile` rows, the missing ones as copies of the last one; `tile` is a multiple of 4, or 6. */
INLINE void transpose_tile(const Rows *rows, float *out, const int tile) {
    const float *from[tile + 2];
    for (int64_t r = 0; r < (tile + 3) / 4 * 4; r++) from[r] = rows->start + min_of(r, rows->count - 1) * rows->stride;
    int64_t c = 0;
    for (; c + 4 <= rows->width; c += 4, out += 4 * tile)
#pragma GCC unroll 3
        for (int first = 0; first < tile; first += 4) {
            __m128 v[4];
#pragma GCC unroll 4
            for (int r = 0; r < 4; r++) v[r] = _mm_loadu_ps(from[first + r] + c);
            _MM_TRANSPOSE4_PS(v[0], v[1], v[2], v[3]);
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++)
                if (first + 4 <= tile) _mm_storeu_ps(out + tile * k + first, v[k]);
                else _mm_storel_pi((__m64 *)(out + tile * k + first), v[k]); /* rows 4 and 5 of 6 */
        }
    for (; c < rows->width; c++)
        for (int r = 0; r < tile; r++) *out++ = from[r][c];
}

static void pack(const Rows *rows, const float *smooth_scales, void *out, float *scales) {
    (void)smooth_scales, (void)scales; /* float32 needs neither */
    transpose_tile(rows, out, ROWS);
}

static void pack_columns(const Rows *rows, void *out) { transpose_tile(rows, out, 2 * WIDTH); }

static void convert(const float *from, int64_t count, void *to) {
    int64_t c = 0;
    for (; c + WIDTH <= count; c += WIDTH) store((float *)to + c, load(from + c));
    memcpy((float *)to + c, from + c, (count - c) * sizeof(float));
}

#define FLOAT32_PRODUCT {ROWS, 2 * WIDTH, 1, sizeof(float), PART_BYTES, multiply, pack, pack_columns, convert}
