/* What the ARM levels share. */
#ifndef CENOTE_ARM_H
#define CENOTE_ARM_H

#include "level.h"
#include <arm_neon.h>

enum { PART_BYTES = 24 << 10 }; /* with the row tiles, it fits in the L1 cache */

extern const Product cenote_neon_float32, cenote_fp16_float16, cenote_dotprod_int8, cenote_i8mm_int8, cenote_bf16_bfloat16;
extern const RowKernels cenote_neon_rows;

/* The `multiply` of a product with tiles of 8 rows and VECTORS vectors of columns; few rows are multiplied as a half tile. */
#define DEFINE_MULTIPLY(NAME, VECTORS)                                                                                                  \
    static void NAME(const void *a, const void *b, int64_t words, void *sums, int64_t stride, int64_t count, int add, const Prefetch *ahead) { \
        (void)ahead; /* see linear.c */                                                                                                 \
        if (count > 4) multiply_rows(a, b, words, sums, stride, add, 8, VECTORS);                                                       \
        else multiply_rows(a, b, words, sums, stride, add, 4, VECTORS);                                                                 \
    }

static inline __attribute__((always_inline)) void transpose_words(float32x4_t v[4]) {
    const float32x4_t a = vtrn1q_f32(v[0], v[1]), b = vtrn2q_f32(v[0], v[1]), c = vtrn1q_f32(v[2], v[3]), d = vtrn2q_f32(v[2], v[3]);
    v[0] = vreinterpretq_f32_f64(vtrn1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(c)));
    v[1] = vreinterpretq_f32_f64(vtrn1q_f64(vreinterpretq_f64_f32(b), vreinterpretq_f64_f32(d)));
    v[2] = vreinterpretq_f32_f64(vtrn2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(c)));
    v[3] = vreinterpretq_f32_f64(vtrn2q_f64(vreinterpretq_f64_f32(b), vreinterpretq_f64_f32(d)));
}

/* The largest absolute value of a row times its smooth scales; NaN if there is one. */
static inline float max_absolute(const float *row, const float *smooth_scales, int64_t width) {
    float32x4_t low = vdupq_n_f32(0.0f), high = low;
    float largest = 0.0f;
    int64_t c = 0;
    for (; c + 8 <= width; c += 8) {
        float32x4_t first = vld1q_f32(row + c), second = vld1q_f32(row + c + 4);
        if (smooth_scales) first = vmulq_f32(first, vld1q_f32(smooth_scales + c)), second = vmulq_f32(second, vld1q_f32(smooth_scales + c + 4));
        low = vmaxq_f32(low, vabsq_f32(first)), high = vmaxq_f32(high, vabsq_f32(second));
    }
    largest = vmaxvq_f32(vmaxq_f32(low, high));
    for (; c < width; c++) {
        const float value = __builtin_fabsf(smooth_scales ? row[c] * smooth_scales[c] : row[c]);
        if (!(value <= largest)) largest = value;
    }
    return largest;
}

#endif
