/* Level `neon`: float32 on every aarch64 CPU. A tile of 8 rows x 12 columns fills 24 of the 32 vector registers with sums. */
#if defined(__aarch64__)
#define WIDTH 4
#include "arm.h"
#include "row_kernels.h"
#include <string.h>

enum { COLUMNS = 12, NARROW_COLUMNS = 8 };

INLINE void multiply_rows(
    const float *a, const float *b, int64_t words, float *sums, int64_t stride, int add, const int rows, const int vectors
) {
    float32x4_t c[8][3];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
        for (int j = 0; j < vectors; j++) c[r][j] = add ? vld1q_f32(sums + r * stride + 4 * j) : vdupq_n_f32(0.0f);
    for (; words > 0; words--, a += 8, b += 4 * vectors) {
        const float32x4_t low = vld1q_f32(a), high = vld1q_f32(a + 4);
#pragma GCC unroll 3
        for (int j = 0; j < vectors; j++) {
            const float32x4_t column = vld1q_f32(b + 4 * j);
            c[0][j] = vfmaq_laneq_f32(c[0][j], column, low, 0);
            c[1][j] = vfmaq_laneq_f32(c[1][j], column, low, 1);
            c[2][j] = vfmaq_laneq_f32(c[2][j], column, low, 2);
            c[3][j] = vfmaq_laneq_f32(c[3][j], column, low, 3);
            if (rows == 4) continue;
            c[4][j] = vfmaq_laneq_f32(c[4][j], column, high, 0);
            c[5][j] = vfmaq_laneq_f32(c[5][j], column, high, 1);
            c[6][j] = vfmaq_laneq_f32(c[6][j], column, high, 2);
            c[7][j] = vfmaq_laneq_f32(c[7][j], column, high, 3);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
        for (int j = 0; j < vectors; j++) vst1q_f32(sums + r * stride + 4 * j, c[r][j]);
}

DEFINE_MULTIPLY(multiply, COLUMNS / 4)
DEFINE_MULTIPLY(multiply_narrow, NARROW_COLUMNS / 4)

/* Transpose `tile` rows, a multiple of 4, the missing ones as copies of the last one. */
INLINE void transpose_tile(const Rows *rows, float *out, const int tile) {
    const float *from[tile];
    for (int64_t r = 0; r < tile; r++) from[r] = rows->start + min_of(r, rows->count - 1) * rows->stride;
    int64_t c = 0;
    for (; c + 4 <= rows->width; c += 4, out += 4 * tile)
#pragma GCC unroll 3
        for (int first = 0; first < tile; first += 4) {
            float32x4_t v[4];
#pragma GCC unroll 4
            for (int r = 0; r < 4; r++) v[r] = vld1q_f32(from[first + r] + c);
            transpose_words(v);
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) vst1q_f32(out + tile * k + first, v[k]);
        }
    for (; c < rows->width; c++)
        for (int r = 0; r < tile; r++) *out++ = from[r][c];
}

static void pack(const Rows *rows, const float *smooth_scales, void *out, float *scales) {
    (void)smooth_scales, (void)scales; /* float32 needs neither */
    transpose_tile(rows, out, 8);
}

static void pack_columns(const Rows *rows, void *out) { transpose_tile(rows, out, COLUMNS); }
static void pack_narrow_columns(const Rows *rows, void *out) { transpose_tile(rows, out, NARROW_COLUMNS); }

static void convert(const float *from, int64_t count, void *to) { memcpy(to, from, count * sizeof(float)); }

static const Product NARROW = {8, NARROW_COLUMNS, 1, sizeof(float), PART_BYTES, multiply_narrow, pack, pack_narrow_columns, convert};
const Product cenote_neon_float32 = {8, COLUMNS, 1, sizeof(float), PART_BYTES, multiply, pack, pack_columns, convert, .narrow = &NARROW};
const RowKernels cenote_neon_rows = ROW_KERNELS;
#endif
