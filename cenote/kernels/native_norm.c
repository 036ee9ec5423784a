/* What stands between linear layers, over rows of bfloat16: additions with the norm after them, gated activations, turned heads. */
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
            GATED(QUICK_GELU)
        }
    }
}

/* As many of 16 numbers as there are, and where they go. */
static inline __m512 some_of(const bf16 *from, __mmask16 those) { return wide(_mm256_maskz_loadu_epi16(those, from)); }
static inline void put(bf16 *to, __mmask16 those, __m512 value) { _mm256_mask_storeu_epi16(to, those, narrow(value)); }

/* Numbers of a head after its norm, which is none where there is no weight. */
static inline __m512 normed(const bf16 *head, int64_t column, __mmask16 those, float rate, const bf16 *weight) {
    const __m512 value = some_of(head + column, those);
    if (weight == NULL) return value;
    return _mm512_mul_ps(wide(narrow(_mm512_mul_ps(value, _mm512_set1_ps(rate)))), some_of(weight + column, those));
}

static void turn_head(bf16 *head, int64_t dim, int64_t half, const bf16 *cosine, const bf16 *sine, const bf16 *weight, float eps) {
    float rate = 1.0f;
    if (weight) {
        __m512 squares = _mm512_setzero_ps();
        for (int64_t c = 0; c < dim; c += 16) {
            const __m512 value = some_of(head + c, those_of(dim - c));
            squares = _mm512_fmadd_ps(value, value, squares);
        }
        rate = 1.0f / __builtin_sqrtf(_mm512_reduce_add_ps(squares) / dim + eps);
    }
    for (int64_t c = 0; c < half; c += 16) {
        const __mmask16 those = those_of(half - c);
        const __m512 first = normed(head, c, those, rate, weight), second = normed(head, half + c, those, rate, weight);
        const __m512 along = some_of(cosine + c, those), across = some_of(sine + c, those);
        put(head + c, those, _mm512_fmsub_ps(first, along, _mm512_mul_ps(second, across)));
        put(head + half + c, those, _mm512_fmadd_ps(second, along, _mm512_mul_ps(first, across)));
    }
    for (int64_t c = weight ? 2 * half : dim; c < dim; c += 16)
        put(head + c, those_of(dim - c), normed(head, c, those_of(dim - c), rate, weight));
}

/* In place, `heads` of `dim` numbers in every row, rows at the given distance: the RMS norm of each, where there are weights,
 * then the first `half` of it turned against the second. The first `queries` of them have a weight of their own. */
void cenote_turn(
    bf16 *rows, int64_t stride, int64_t count, int64_t heads, int64_t queries, int64_t dim, int64_t half, const bf16 *cosine,
    const bf16 *sine, const bf16 *query_weight, const bf16 *key_weight, float eps, int64_t threads
) {
#pragma omp parallel for num_threads(threads) if (count * heads * dim > 1 << 15)
    for (int64_t row = 0; row < count; row++)
        for (int64_t head = 0; head < heads; head++)
            turn_head(
                rows + row * stride + head * dim, dim, half, cosine + row * half, sine + row * half,
                head < queries ? query_weight : key_weight, eps
            );
}
