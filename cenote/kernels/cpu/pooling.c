/* Rows of float32 after the encoder: pooled by sequence, normalized, checked. Every row is computed by itself, in the same order in
 * any batch. Compiled for the baseline of the architecture. */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { MEAN, FIRST, LAST }; /* as in pooling.py */
enum { LANES = 8 };

/* Calls in `threads` threads. A parallel region costs more than the rows of one text, even with a single thread. */
#define FOR_EACH(INDEX, COUNT, CALL)                                      \
    if (threads <= 1) {                                                   \
        for (int64_t INDEX = 0; INDEX < (COUNT); INDEX++) CALL;           \
    } else {                                                              \
        _Pragma("omp parallel for num_threads(threads) schedule(static)") \
        for (int64_t INDEX = 0; INDEX < (COUNT); INDEX++) CALL;           \
    }

static void add_row(const float *restrict row, int64_t width, float *restrict sum) {
    for (int64_t c = 0; c < width; c++) sum[c] += row[c];
}

static void divide_row(float *row, int64_t width, float divisor) {
    for (int64_t c = 0; c < width; c++) row[c] /= divisor;
}

/* Pool the rows first to end; NaN if there is none. */
static void pool_sequence(const float *rows, int64_t stride, int64_t width, int64_t first, int64_t end, int64_t method, float *out) {
    if (first >= end) {
        for (int64_t c = 0; c < width; c++) out[c] = NAN;
        return;
    }
    memcpy(out, rows + (method == LAST ? end - 1 : first) * stride, width * sizeof(float));
    if (method != MEAN) return;
    for (int64_t t = first + 1; t < end; t++) add_row(rows + t * stride, width, out);
    divide_row(out, width, (float)(end - first));
}

static void normalize_row(const float *row, int64_t width, float eps, float *out) {
    double lanes[LANES] = {0}, total = 0;
    int64_t c = 0;
    for (; c + LANES <= width; c += LANES)
        for (int i = 0; i < LANES; i++) lanes[i] += (double)row[c + i] * row[c + i];
    for (; c < width; c++) lanes[0] += (double)row[c] * row[c];
    for (int i = 0; i < LANES; i++) total += lanes[i];
    const float norm = (float)sqrt(total);
    memcpy(out, row, width * sizeof(float));
    divide_row(out, width, norm > eps ? norm : eps);
}

/* offsets: [num_seqs + 1]; unpooled: [num_seqs], leading tokens of each sequence that are not pooled, or NULL. */
void cenote_pool_rows(
    const float *rows, int64_t stride, int64_t width, const int64_t *offsets, const int64_t *unpooled, int64_t num_seqs, int64_t method,
    float *out, int64_t threads
) {
    FOR_EACH(
        s, num_seqs,
        pool_sequence(rows, stride, width, offsets[s] + (unpooled ? unpooled[s] : 0), offsets[s + 1], method, out + s * width)
    )
}

/* Divide rows by their Euclidean norms, or by eps where these are smaller. */
void cenote_normalize_rows(const float *rows, int64_t stride, int64_t width, int64_t num_rows, float eps, float *out, int64_t threads) {
    FOR_EACH(r, num_rows, normalize_row(rows + r * stride, width, eps, out + r * width))
}

/* Return whether there is neither NaN nor infinity. */
int cenote_all_finite(const float *values, int64_t count) {
    int64_t num_finite = 0;
    for (int64_t i = 0; i < count; i++) num_finite += fabsf(values[i]) <= FLT_MAX;
    return num_finite == count;
}
