/* Level `bf16`: bfloat16 with BFMMLA, which multiplies two rows of 4 inputs with two columns and adds them in float32: 16 products, where
 * BFDOT has 8. bfloat16 has the range of float32: rows are rounded to nearest even and not scaled. Attention of this level multiplies in
 * float16, which is more precise and needs no pairs of keys. */
#include "compiler.h"
#if defined(__aarch64__) && KNOWS_ARM_I8MM_AND_BF16
#include "arm.h"
#include <string.h>
#pragma GCC target("arch=armv8.2-a+bf16")

enum { ROWS = 8, COLUMNS = 12, WORD = 4 };

#define INLINE static inline __attribute__((always_inline))

INLINE void add_or_store(float *to, float32x4_t value, int add) { vst1q_f32(to, add ? vaddq_f32(vld1q_f32(to), value) : value); }

INLINE void multiply_rows(const bfloat16_t *a, const bfloat16_t *b, int64_t words, float *sums, int64_t stride, int add, const int pairs) {
    float32x4_t c[4][6]; /* of two rows and two columns each */
#pragma GCC unroll 4
    for (int r = 0; r < pairs; r++)
#pragma GCC unroll 6
        for (int j = 0; j < 6; j++) c[r][j] = vdupq_n_f32(0.0f);
    for (; words > 0; words--, a += ROWS * WORD, b += COLUMNS * WORD) {
        bfloat16x8_t rows[4];
#pragma GCC unroll 4
        for (int r = 0; r < pairs; r++) rows[r] = vld1q_bf16(a + 2 * WORD * r);
#pragma GCC unroll 6
        for (int j = 0; j < 6; j++) {
            const bfloat16x8_t columns = vld1q_bf16(b + 2 * WORD * j);
#pragma GCC unroll 4
            for (int r = 0; r < pairs; r++) c[r][j] = vbfmmlaq_f32(c[r][j], rows[r], columns);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < pairs; r++)
#pragma GCC unroll 3
        for (int j = 0; j < 3; j++) {
            const float64x2_t left = vreinterpretq_f64_f32(c[r][2 * j]), right = vreinterpretq_f64_f32(c[r][2 * j + 1]);
            float *to = sums + 2 * r * stride + 4 * j;
            add_or_store(to, vreinterpretq_f32_f64(vzip1q_f64(left, right)), add);
            add_or_store(to + stride, vreinterpretq_f32_f64(vzip2q_f64(left, right)), add);
        }
}

static void multiply(const void *a, const void *b, int64_t words, void *sums, int64_t stride, int64_t count, int add, const Prefetch *ahead) {
    (void)ahead; /* see linear.c */
    if (count > ROWS / 2) multiply_rows(a, b, words, sums, stride, add, 4);
    else multiply_rows(a, b, words, sums, stride, add, 2);
}

static void pack(const Rows *rows, const float *smooth_scales, void *out, float *scales) {
    (void)smooth_scales, (void)scales; /* bfloat16 needs neither */
    bfloat16_t *to = out;
    const float *from[ROWS];
    for (int64_t r = 0; r < ROWS; r++) from[r] = rows->start + min_of(r, rows->count - 1) * rows->stride;
    int64_t c = 0;
    for (; c + WORD <= rows->width; c += WORD, to += ROWS * WORD)
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) vst1_bf16(to + WORD * r, vcvt_bf16_f32(vld1q_f32(from[r] + c)));
    if (c == rows->width) return;
    for (int r = 0; r < ROWS; r++) {
        float tail[WORD] = {0};
        memcpy(tail, from[r] + c, (rows->width - c) * sizeof(float));
        vst1_bf16(to + WORD * r, vcvt_bf16_f32(vld1q_f32(tail)));
    }
}

const Product cenote_bf16_bfloat16 = {ROWS, COLUMNS, WORD, sizeof(bfloat16_t), PART_BYTES, multiply, pack, NULL, NULL};
#endif
