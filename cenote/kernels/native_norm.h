/* LayerNorm and RMSNorm of one row. */
#ifndef CENOTE_NATIVE_NORM_H
#define CENOTE_NATIVE_NORM_H

#include "native.h"

/* A row x is normalized as x * inv_std - mean_inv_std. */
typedef struct {
    __m512 inv_std, mean_inv_std;
} NormFactors;

static inline NormFactors norm_factors(__m512 sum, __m512 squares, int64_t width, float eps, int rms) {
    const float mean = rms ? 0.0f : _mm512_reduce_add_ps(sum) / width;
    const float variance = _mm512_reduce_add_ps(squares) / width - mean * mean;
    const __m128 root = _mm_sqrt_ss(_mm_set_ss((variance > 0.0f ? variance : variance - variance) + eps)); /* NaN propagates */
    const __m512 inv_std = _mm512_set1_ps(1.0f / _mm_cvtss_f32(root));
    return (NormFactors){inv_std, _mm512_mul_ps(_mm512_set1_ps(mean), inv_std)};
}

static inline __m512 normalized(const Norm *norm, NormFactors scale, const float *row, int64_t c) {
    /* always one multiply-add: a compiler that chose where to fuse would give a row other bits in another function */
    const __m512 weight = norm->weight ? _mm512_loadu_ps(norm->weight + c) : _mm512_set1_ps(1.0f);
    const __m512 bias = norm->bias ? _mm512_loadu_ps(norm->bias + c) : _mm512_setzero_ps();
    return _mm512_fmadd_ps(_mm512_fmsub_ps(_mm512_load_ps(row + c), scale.inv_std, scale.mean_inv_std), weight, bias);
}

/* Normalize a row of float32, given its sum and sum of squares, to bfloat16 in groups of 32 stored `step` bytes apart. */
static inline void normalize(const Norm *norm, const float *row, int64_t width, __m512 sum, __m512 squares, uint8_t *out, int64_t step) {
    const NormFactors scale = norm_factors(sum, squares, width, norm->eps, norm->kind == RMS_NORM);
    for (int64_t c = 0; c < width; c += 32)
        _mm512_storeu_si512(out + c / 32 * step, f32x2_to_bf16(normalized(norm, scale, row, c), normalized(norm, scale, row, c + 16)));
}

#endif
