/* Kernels between the linear layers, over rows of bfloat16: residual add with norm, gated activations, QK norm with rotary embedding. */
#include "cpu/compiler.h"
#if KNOWS_AMX
#include "native_norm.h"

static inline __m512 load_bf16(const bf16 *row, int64_t column) { return bf16_to_f32(_mm256_loadu_si256((const void *)(row + column))); }

static void add_norm_row(
    const bf16 *x, const bf16 *branch, const bf16 *weight, const bf16 *bias, float eps, float offset, int rms, int64_t width,
    bf16 *total, bf16 *out, float *row_buffer
) {
    __m512 sum = _mm512_setzero_ps(), squares = sum;
    for (int64_t c = 0; c < width; c += 16) {
        __m512 value = load_bf16(x, c);
        if (branch) value = _mm512_add_ps(value, load_bf16(branch, c));
        if (total) _mm256_storeu_si256((void *)(total + c), f32_to_bf16(value));
        sum = _mm512_add_ps(sum, value);
        squares = _mm512_fmadd_ps(value, value, squares);
        _mm512_store_ps(row_buffer + c, value);
    }
    const NormFactors scale = norm_factors(sum, squares, width, eps, rms);
    for (int64_t c = 0; c < width; c += 16) {
        __m512 value = _mm512_fmsub_ps(_mm512_load_ps(row_buffer + c), scale.inv_std, scale.mean_inv_std);
        if (rms && offset == 0.0f) value = bf16_to_f32(f32_to_bf16(value)); /* rounded before the weight is applied, as in training */
        if (weight) value = _mm512_mul_ps(value, _mm512_add_ps(load_bf16(weight, c), _mm512_set1_ps(offset)));
        if (bias) value = _mm512_add_ps(value, load_bf16(bias, c));
        _mm256_storeu_si256((void *)(out + c), f32_to_bf16(value));
    }
}

/* total = x + branch, out = norm(total), for rows of `width`, a multiple of 16. branch, total, weight and bias may be NULL.
 * Returns 0, or 1 if no scratch memory could be allocated. */
int cenote_add_norm(
    const bf16 *x, const bf16 *branch, const bf16 *weight, const bf16 *bias, float eps, float offset, int rms, int64_t rows,
    int64_t width, bf16 *total, bf16 *out, int64_t threads
) {
    int64_t failed = 0;
#pragma omp parallel num_threads(threads) if (rows * width > 1 << 15)
    {
        float *row_buffer = (float *)cenote_scratch(THREAD_SCRATCH, width * sizeof(float));
        if (row_buffer == NULL) __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
#pragma omp for
        for (int64_t row = 0; row < rows; row++) {
            const int64_t start = row * width;
            if (row_buffer != NULL)
                add_norm_row(
                    x + start, branch ? branch + start : NULL, weight, bias, eps, offset, rms, width,
                    total ? total + start : NULL, out + start, row_buffer
                );
        }
    }
    return failed;
}

#define ACT_AND_MUL(ACTIVATION)                                                                             \
    case ACTIVATION:                                                                                  \
        for (int64_t c = 0; c < width; c += 16) {                                                     \
            const __m512 value = _mm512_mul_ps(apply_activation(load_bf16(gate, c), ACTIVATION), load_bf16(gate, width + c)); \
            _mm256_storeu_si256((void *)(to + c), f32_to_bf16(value));                                     \
        }                                                                                             \
        break;

/* both [rows][2 * width], gate before up -> out [rows][width] = activation(gate) * up. The width is a multiple of 16. */
void cenote_act_and_mul(const bf16 *both, int64_t rows, int64_t width, int64_t activation, bf16 *out, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (rows * width > 1 << 15)
    for (int64_t row = 0; row < rows; row++) {
        const bf16 *gate = both + row * 2 * width;
        bf16 *to = out + row * width;
        switch (activation) {
            ACT_AND_MUL(IDENTITY)
            ACT_AND_MUL(GELU)
            ACT_AND_MUL(GELU_TANH)
            ACT_AND_MUL(RELU)
            ACT_AND_MUL(SILU)
            ACT_AND_MUL(QUICK_GELU)
        }
    }
}

/* Load and store up to 16 elements. */
static inline __m512 masked_load(const bf16 *from, __mmask16 mask) { return bf16_to_f32(_mm256_maskz_loadu_epi16(mask, from)); }
static inline void masked_store(bf16 *to, __mmask16 mask, __m512 value) { _mm256_mask_storeu_epi16(to, mask, f32_to_bf16(value)); }

/* Elements of a head after its RMS norm; without a weight there is no norm. */
static inline __m512 norm_head(const bf16 *head, int64_t column, __mmask16 mask, float inv_std, const bf16 *weight) {
    const __m512 value = masked_load(head + column, mask);
    if (weight == NULL) return value;
    return _mm512_mul_ps(bf16_to_f32(f32_to_bf16(_mm512_mul_ps(value, _mm512_set1_ps(inv_std)))), masked_load(weight + column, mask));
}

static void rope_head(bf16 *head, int64_t dim, int64_t half, const bf16 *cosine, const bf16 *sine, const bf16 *weight, float eps) {
    float inv_std = 1.0f;
    if (weight) {
        __m512 squares = _mm512_setzero_ps();
        for (int64_t c = 0; c < dim; c += 16) {
            const __m512 value = masked_load(head + c, tail_mask(dim - c));
            squares = _mm512_fmadd_ps(value, value, squares);
        }
        inv_std = 1.0f / __builtin_sqrtf(_mm512_reduce_add_ps(squares) / dim + eps);
    }
    for (int64_t c = 0; c < half; c += 16) {
        const __mmask16 mask = tail_mask(half - c);
        const __m512 first = norm_head(head, c, mask, inv_std, weight), second = norm_head(head, half + c, mask, inv_std, weight);
        const __m512 cos_lane = masked_load(cosine + c, mask), sin_lane = masked_load(sine + c, mask);
        masked_store(head + c, mask, _mm512_fmsub_ps(first, cos_lane, _mm512_mul_ps(second, sin_lane)));
        masked_store(head + half + c, mask, _mm512_fmadd_ps(second, cos_lane, _mm512_mul_ps(first, sin_lane)));
    }
    for (int64_t c = weight ? 2 * half : dim; c < dim; c += 16)
        masked_store(head + c, tail_mask(dim - c), norm_head(head, c, tail_mask(dim - c), inv_std, weight));
}

/* Apply the RMS norm, if there are weights, and the rotary embedding to `heads` heads of `dim` elements in every row, in place.
 * The first 2 * half dimensions are rotated, in pairs (i, half + i). The first `queries` heads use query_weight, the others key_weight. */
void cenote_rope(
    bf16 *rows, int64_t stride, int64_t count, int64_t heads, int64_t queries, int64_t dim, int64_t half, const bf16 *cosine,
    const bf16 *sine, const bf16 *query_weight, const bf16 *key_weight, float eps, int64_t threads
) {
#pragma omp parallel for num_threads(threads) if (count * heads * dim > 1 << 15)
    for (int64_t row = 0; row < count; row++)
        for (int64_t head = 0; head < heads; head++)
            rope_head(
                rows + row * stride + head * dim, dim, half, cosine + row * half, sine + row * half,
                head < queries ? query_weight : key_weight, eps
            );
}
#endif
