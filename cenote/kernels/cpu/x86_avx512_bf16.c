/* Level `avx512_bf16`: bfloat16 with VDPBF16PS, which adds two products to each lane, in float32. A tile of 8 rows x 32 columns fills 16
 * of the 32 vector registers with sums. bfloat16 has the range of float32: rows are rounded to nearest even and not scaled. */
#include "compiler.h"
#if defined(__x86_64__) && KNOWS_AVX_VNNI_AND_AVX512_BF16
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,avx512bf16,prefer-vector-width=512")
#define WIDTH 16
#include "x86.h"

#include "vectors.h"
#include <string.h>

enum { ROWS = 8, WORD = 2, PACKED_WORDS = 4 }; /* PACKED_WORDS: those of a row that are packed at once */

INLINE vfloat dot(vfloat sums, vint row, vint columns) {
    return (vfloat)_mm512_dpbf16_ps((__m512)sums, (__m512bh)row, (__m512bh)columns);
}

/* Rows and columns are arrays of words of two inputs, 32 bits each. */
INLINE void multiply_rows(const int32_t *a, const int32_t *b, int64_t words, float *sums, int64_t stride, int add, Prefetch ahead, const int rows, const int prefetches) {
    vfloat c[ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) c[r][j] = add ? load(sums + r * stride + WIDTH * j) : splat(0.0f);
    for (; words > 0; words--, a += ROWS, b += 2 * WIDTH) {
        if (prefetches) prefetch_step(&ahead);
        const vint left = load_int(b), right = load_int(b + WIDTH);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const vint row = a[r] - (vint){0};
            c[r][0] = dot(c[r][0], row, left);
            c[r][1] = dot(c[r][1], row, right);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) store(sums + r * stride + WIDTH * j, c[r][j]);
}

static void multiply(const void *a, const void *b, int64_t words, void *sums, int64_t stride, int64_t count, int add, const Prefetch *ahead) {
    if (count > ROWS / 2) {
        if (ahead->step) multiply_rows(a, b, words, sums, stride, add, *ahead, ROWS, 1);
        else multiply_rows(a, b, words, sums, stride, add, *ahead, ROWS, 0);
    } else if (ahead->step) multiply_rows(a, b, words, sums, stride, add, *ahead, ROWS / 2, 1);
    else multiply_rows(a, b, words, sums, stride, add, *ahead, ROWS / 2, 0);
}

/* Pack the first `words` of four words from every row. */
INLINE void pack_words(const float *const from[ROWS], int64_t words, int32_t *to) {
#pragma GCC unroll 2
    for (int first = 0; first < ROWS; first += 4) {
        __m128 v[4]; /* words, moved as floats */
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) v[r] = (__m128)_mm256_cvtneps_pbh(_mm256_loadu_ps(from[first + r]));
        _MM_TRANSPOSE4_PS(v[0], v[1], v[2], v[3]);
#pragma GCC unroll 4
        for (int word = 0; word < PACKED_WORDS; word++)
            if (word < words) _mm_storeu_ps((float *)(to + ROWS * word + first), v[word]);
    }
}

static void pack(const Rows *rows, const float *smooth_scales, void *out, float *scales) {
    (void)smooth_scales, (void)scales; /* bfloat16 needs neither */
    enum { INPUTS = PACKED_WORDS * WORD };
    const float *from[ROWS];
    int32_t *to = out;
    for (int64_t r = 0; r < ROWS; r++) from[r] = rows->start + min_of(r, rows->count - 1) * rows->stride;
    int64_t c = 0;
    for (; c + INPUTS <= rows->width; c += INPUTS, to += PACKED_WORDS * ROWS) {
        pack_words(from, PACKED_WORDS, to);
        for (int r = 0; r < ROWS; r++) from[r] += INPUTS;
    }
    if (c == rows->width) return;
    float tail[ROWS][INPUTS] = {0};
    for (int r = 0; r < ROWS; r++) {
        memcpy(tail[r], from[r], (rows->width - c) * sizeof(float));
        from[r] = tail[r];
    }
    pack_words(from, divide_up(rows->width - c, WORD), to);
}

/* Without `convert`, attention of this level multiplies in float32: its values would have to be packed in pairs of keys. */
const Product cenote_avx512_bfloat16 = {ROWS, 2 * WIDTH, WORD, sizeof(uint16_t), 24 << 10, multiply, pack, NULL, NULL};
#endif
