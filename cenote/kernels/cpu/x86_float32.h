/* Float32 products of x86-64 levels: tiles of ROWS rows (6 or 8) and two vectors of columns. */
#include "vectors.h"
#include <string.h>

INLINE void multiply_rows(const float *a, const float *b, int64_t words, float *sums, int64_t stride, int add, Prefetch ahead, const int rows) {
    vfloat c[ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) c[r][j] = add ? load(sums + r * stride + WIDTH * j) : splat(0.0f);
    while (words > 0) {
        const int64_t end = words - min_of(words, PREFETCH_WORDS);
        prefetch_lines(&ahead);
        for (; words > end; words--, a += ROWS, b += 2 * WIDTH) {
            const vfloat left = load(b), right = load(b + WIDTH);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                const vfloat row = splat(a[r]);
                c[r][0] += row * left;
                c[r][1] += row * right;
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) store(sums + r * stride + WIDTH * j, c[r][j]);
}

static void multiply(const void *a, const void *b, int64_t words, void *sums, int64_t stride, int64_t count, int add, Prefetch ahead) {
    if (count > ROWS / 2) multiply_rows(a, b, words, sums, stride, add, ahead, ROWS);
    else multiply_rows(a, b, words, sums, stride, add, ahead, ROWS / 2);
}

static void pack(const Rows *rows, const float *smooth_scales, void *out, float *scales) {
    (void)smooth_scales, (void)scales; /* float32 needs neither */
    float *to = out;
    const float *from[8];
    for (int64_t r = 0; r < 8; r++) from[r] = rows->start + min_of(r, rows->count - 1) * rows->stride;
    int64_t c = 0;
    for (; c + 4 <= rows->width; c += 4, to += 4 * ROWS)
#pragma GCC unroll 2
        for (int first = 0; first < 8; first += 4) {
            __m128 v[4];
#pragma GCC unroll 4
            for (int r = 0; r < 4; r++) v[r] = _mm_loadu_ps(from[first + r] + c);
            _MM_TRANSPOSE4_PS(v[0], v[1], v[2], v[3]);
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++)
                if (first + 4 <= ROWS) _mm_storeu_ps(to + ROWS * k + first, v[k]);
                else _mm_storel_pi((__m64 *)(to + ROWS * k + first), v[k]); /* rows 4 and 5 of 6 */
        }
    for (; c < rows->width; c++)
        for (int r = 0; r < ROWS; r++) *to++ = from[r][c];
}

static void convert(const float *from, int64_t count, void *to) { memcpy(to, from, count * sizeof(float)); }

#define FLOAT32_PRODUCT {ROWS, 2 * WIDTH, 1, sizeof(float), multiply, pack, convert}
