/* Level `fp16`: products of float16, summed in float16 over 128 inputs at a time and in float32 beyond. Rows are scaled by powers of
 * two so that their largest value is below 16, or the bound of their values below 256, and weights so that it is below 1: no sum of 128
 * products overflows. */
#if defined(__aarch64__)
#include "arm.h"
#pragma GCC target("arch=armv8.2-a+fp16")

enum { BLOCK = 128, COLUMNS = 24, NARROW_COLUMNS = 16 };

#define INLINE static inline __attribute__((always_inline))

/* gcc copies a lane of float16 to a whole vector before it multiplies by it; the instruction needs no copy */
#define MULTIPLY_ADD(SUM, COLUMN, ROW, LANE) __asm__("fmla %0.8h, %1.8h, %2.h[" #LANE "]" : "+w"(SUM) : "w"(COLUMN), "x"(ROW))

INLINE void multiply_rows(
    const float16_t *a, const float16_t *b, int64_t words, float *sums, int64_t stride, int add, const int rows, const int vectors
) {
    do {
        float16x8_t c[8][3];
        int64_t block = words < BLOCK ? words : BLOCK;
        words -= block;
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
            for (int j = 0; j < vectors; j++) c[r][j] = vdupq_n_f16(0);
        for (; block > 0; block--, a += 8, b += 8 * vectors) {
            const float16x8_t row = vld1q_f16(a);
#pragma GCC unroll 3
            for (int j = 0; j < vectors; j++) {
                const float16x8_t column = vld1q_f16(b + 8 * j);
                MULTIPLY_ADD(c[0][j], column, row, 0);
                MULTIPLY_ADD(c[1][j], column, row, 1);
                MULTIPLY_ADD(c[2][j], column, row, 2);
                MULTIPLY_ADD(c[3][j], column, row, 3);
                if (rows == 4) continue;
                MULTIPLY_ADD(c[4][j], column, row, 4);
                MULTIPLY_ADD(c[5][j], column, row, 5);
                MULTIPLY_ADD(c[6][j], column, row, 6);
                MULTIPLY_ADD(c[7][j], column, row, 7);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
            for (int j = 0; j < vectors; j++) {
                float *to = sums + r * stride + 8 * j;
                const float32x4_t low = vcvt_f32_f16(vget_low_f16(c[r][j])), high = vcvt_high_f32_f16(c[r][j]);
                vst1q_f32(to, add ? vaddq_f32(vld1q_f32(to), low) : low);
                vst1q_f32(to + 4, add ? vaddq_f32(vld1q_f32(to + 4), high) : high);
            }
        add = 1;
    } while (words > 0);
}

DEFINE_MULTIPLY(multiply, COLUMNS / 8)
DEFINE_MULTIPLY(multiply_narrow, NARROW_COLUMNS / 8)

INLINE float16x8_t interleave_pairs(float16x8_t a, float16x8_t b, const int high) {
    const float32x4_t x = vreinterpretq_f32_f16(a), y = vreinterpretq_f32_f16(b);
    return vreinterpretq_f16_f32(high ? vtrn2q_f32(x, y) : vtrn1q_f32(x, y));
}

INLINE float16x8_t interleave_fours(float16x8_t a, float16x8_t b, const int high) {
    const float64x2_t x = vreinterpretq_f64_f16(a), y = vreinterpretq_f64_f16(b);
    return vreinterpretq_f16_f64(high ? vtrn2q_f64(x, y) : vtrn1q_f64(x, y));
}

INLINE void transpose_halves(float16x8_t v[8]) {
    float16x8_t a[8], b[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) a[2 * i] = vtrn1q_f16(v[2 * i], v[2 * i + 1]), a[2 * i + 1] = vtrn2q_f16(v[2 * i], v[2 * i + 1]);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            b[4 * i + j] = interleave_pairs(a[4 * i + j], a[4 * i + 2 + j], 0);
            b[4 * i + 2 + j] = interleave_pairs(a[4 * i + j], a[4 * i + 2 + j], 1);
        }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) v[j] = interleave_fours(b[j], b[4 + j], 0), v[4 + j] = interleave_fours(b[j], b[4 + j], 1);
}

/* The power of two that brings the largest value of a row into [2^target, 2^(target + 1)). Zero, inf and NaN stay what they are. */
INLINE float power_of_two_scale(float largest, const uint32_t target) {
    union {
        float value;
        uint32_t bits;
    } scale = {largest};
    const uint32_t exponent = scale.bits >> 23;
    if (exponent < 30 || exponent > 254) return 1.0f;
    scale.bits = (127 + target + 127 - exponent) << 23;
    return scale.value;
}

/* Transpose 8 rows times their factors: input c of them goes to out + c * stride. */
INLINE void transpose_rows(const float *const from[8], const float factors[8], int64_t width, float16_t *out, const int64_t stride) {
    int64_t c = 0;
    for (; c + 8 <= width; c += 8, out += 8 * stride) {
        float16x8_t v[8];
#pragma GCC unroll 8
        for (int r = 0; r < 8; r++) {
            const float32x4_t low = vmulq_n_f32(vld1q_f32(from[r] + c), factors[r]), high = vmulq_n_f32(vld1q_f32(from[r] + c + 4), factors[r]);
            v[r] = vcvt_high_f16_f32(vcvt_f16_f32(low), high);
        }
        transpose_halves(v);
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++) vst1q_f16(out + k * stride, v[k]);
    }
    for (; c < width; c++, out += stride)
        for (int r = 0; r < 8; r++) out[r] = (float16_t)(from[r][c] * factors[r]);
}

static void pack(const Rows *rows, const float *smooth_scales, void *out, float *scales) {
    (void)smooth_scales;
    const float *from[8];
    float factors[8];
    for (int64_t r = 0; r < 8; r++) {
        from[r] = rows->start + min_of(r, rows->count - 1) * rows->stride;
        factors[r] = scales && r < rows->count ? power_of_two_scale(max_absolute(from[r], NULL, rows->width), 3) : 1.0f;
        if (scales && r < rows->count) scales[r] = 1.0f / factors[r];
    }
    transpose_rows(from, factors, rows->width, out, 8);
}

/* In MiniLM-L6, the largest value of a row is 6e-4 to 3e-2 times its bound, so at least 0.07: ten powers of two above the smallest value of
 * float16 that has all bits. */
static void pack_bounded(const Rows *rows, const float *bounds, void *out, float *scales) {
    const float *from[8];
    float factors[8];
    for (int64_t r = 0; r < 8; r++) {
        const int64_t row = min_of(r, rows->count - 1);
        from[r] = rows->start + row * rows->stride;
        factors[r] = power_of_two_scale(bounds[row], 7);
        if (scales && r < rows->count) scales[r] = 1.0f / factors[r];
    }
    transpose_rows(from, factors, rows->width, out, 8);
}

INLINE void pack_panel(const Rows *rows, void *out, const int columns) {
    const float ones[8] = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f}, *from[8];
    for (int64_t first = 0; first < columns; first += 8) {
        for (int64_t r = 0; r < 8; r++) from[r] = rows->start + min_of(first + r, rows->count - 1) * rows->stride;
        transpose_rows(from, ones, rows->width, (float16_t *)out + first, columns);
    }
}

static void pack_columns(const Rows *rows, void *out) { pack_panel(rows, out, COLUMNS); }
static void pack_narrow_columns(const Rows *rows, void *out) { pack_panel(rows, out, NARROW_COLUMNS); }

static void convert(const float *from, int64_t count, void *to) {
    float16_t *halves = to;
    int64_t c = 0;
    for (; c + 4 <= count; c += 4) vst1_f16(halves + c, vcvt_f16_f32(vld1q_f32(from + c)));
    for (; c < count; c++) halves[c] = (float16_t)from[c];
}

static const Product NARROW = {8, NARROW_COLUMNS, 1, sizeof(float16_t), PART_BYTES, multiply_narrow, pack, pack_narrow_columns, convert};
const Product cenote_fp16_float16 = {
    8, COLUMNS, 1, sizeof(float16_t), PART_BYTES, multiply, pack, pack_columns, convert,
    .narrow = &NARROW, .pack_bounded = pack_bounded, .max_input = 16.0f,
};
#endif
