/* Norms of one row. */
#ifndef CENOTE_NATIVE_NORM_H
#define CENOTE_NATIVE_NORM_H

#include "native.h"

typedef struct {
    const float *weight, *bias;
    float eps;
    int32_t rms; /* by the root mean square alone, without the mean */
} Norm;

/* A row of float32 becomes bfloat16, 32 at a time `step` bytes apart. The width is a multiple of 32. */
static inline void normalize(const Norm *norm, const float *row, int64_t width, __m512 total, uint8_t *out, int64_t step) {
    const __m512 mean = norm->rms ? _mm512_setzero_ps() : _mm512_set1_ps(_mm512_reduce_add_ps(total) / width);
    __m512 low_squares = _mm512_setzero_ps(), high_squares = _mm512_setzero_ps();
    for (int64_t c = 0; c < width; c += 32) {
        const __m512 low = _mm512_sub_ps(_mm512_load_ps(row + c), mean), high = _mm512_sub_ps(_mm512_load_ps(row + c + 16), mean);
        low_squares = _mm512_fmadd_ps(low, low, low_squares);
        high_squares = _mm512_fmadd_ps(high, high, high_squares);
    }
    const float spread = _mm512_reduce_add_ps(_mm512_add_ps(low_squares, high_squares)) / width + norm->eps;
    const __m512 rate = _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_sqrt_ps(_mm512_set1_ps(spread)));
    const __m512 shift = _mm512_mul_ps(mean, rate);
    for (int64_t c = 0; c < width; c += 32) {
        __m512 low = _mm512_fmsub_ps(_mm512_load_ps(row + c), rate, shift);
        __m512 high = _mm512_fmsub_ps(_mm512_load_ps(row + c + 16), rate, shift);
        low = _mm512_fmadd_ps(low, _mm512_loadu_ps(norm->weight + c), _mm512_loadu_ps(norm->bias + c));
        high = _mm512_fmadd_ps(high, _mm512_loadu_ps(norm->weight + c + 16), _mm512_loadu_ps(norm->bias + c + 16));
        _mm512_storeu_si512(out + c / 32 * step, narrow_both(low, high));
    }
}

#endif
