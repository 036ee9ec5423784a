/* What stands between linear layers, over rows of bfloat16: additions with the norm after them, and gated activations. */
#include "native_norm.h"

static inline __m512 half_of(const bf16 *row, int64_t column) { return wide(_mm256_loadu_si256((const void *)(row + column))); }

static void add_norm_row(
    const bf16 *x, const bf16 *change, const bf16 *weight, const bf16 *bias, float eps, float offset, int rms, int64_t width,
    bf16 *total, bf16 *out, float *line
) {
    __m512 sum = _mm512_setzero_ps(), squares = sum;
    for (int64_t c = 0; c < width; c += 16) {
        __m512 value = half_of(x, c);
        if (change) value = _mm512_add_ps(value, half_of(change, c));
        if (total) _mm256_storeu_si256((void *)(total + c), narrow(value));
        sum = _mm512_add_ps(sum, value);
        squares = _mm512_fmadd_ps(value, value, squares);
        _mm512_store_ps(line + c, value);
    }
    const Scale scale = scale_of(sum, squares, width, eps, rms);
    for (int64_t c = 0; c < width; c += 16) {
        __m512 value = _mm512_fmsub_ps(_mm512_load_ps(line + c), scale.rate, scale.shift);
        if (rms && offset == 0.0f) value = wide(narrow(value)); /* as models with this norm were trained */
        if (weight) value = _mm512_mul_ps(value, _mm512_add_ps(half_of(weight, c), _mm512_set1_ps(offset)));
        if (bias) value = _mm512_add_ps(value, half_of(bias, c));
        _mm256_storeu_si256((void *)(out + c), narrow(value));
    }
}

/* total = x + change, out = its norm, rows of `width`, a multiple of 16. `change`, `total`, `weight` and `bias` may be NULL. */
int cenote_add_norm(
    const bf16 *x, const bf16 *change, const bf16 *weight, const bf16 *bias, float eps, float offset, int rms, int64_t rows,
    int64_t width, bf16 *total, bf16 *out, int64_t threads
) {
    int64_t failed = 0;
#pragma omp parallel num_threads(threads) if (rows * width > 1 << 15)
    {
        float *line = (float *)cenote_memory(OWN, width * sizeof(float));
        if (line == NULL) __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
#pragma omp for
        for (int64_t row = 0; row < rows; row++) {
            const int64_t place = row * width;
            if (line != NULL)
                add_norm_row(
                    x + place, change ? change + place : NULL, weight, bias, eps, offset, rms, width,
                    total ? total + place : NULL, out + place, line
                );
        }
    }
    return failed;
}

#define GATED(ACTIVATION)                                                                             \
    case ACTIVATION:                                                                                  \
        for (int64_t c = 0; c < width; c += 16) {                                                     \
            const __m512 value = _mm512_mul_ps(activated(half_of(gate, c), ACTIVATION), half_of(gate, width + c)); \
            _mm256_storeu_si256((void *)(to + c), narrow(value));                                     \
        }                                                                                             \
        break;

/* both [rows][2 * width]: gate, then what it opens to -> out [rows][width]. The width is a multiple of 16. */
void cenote_gated(const bf16 *both, int64_t rows, int64_t width, int64_t activation, bf16 *out, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (rows * width > 1 << 15)
    for (int64_t row = 0; row < rows; row++) {
        const bf16 *gate = both + row * 2 * width;
        bf16 *to = out + row * width;
        switch (activation) {
            GATED(NONE)
            GATED(GELU)
            GATED(GELU_TANH)
            GATED(RELU)
            GATED(SILU)
        }
    }
}
