/* Int8 products of x86-64 levels with VPDPBUSD, which multiplies unsigned with signed bytes: rows are packed as value + 128, and the
 * offsets of the epilogue subtract 128 times the sum of the weights of a column. The sums are exact. */
#include "vectors.h"
#include <string.h>

enum { WORD = 4, INPUT_OFFSET = 128 };

typedef uint8_t vbytes __attribute__((vector_size(WIDTH)));

INLINE vint load_words(const int8_t *from) { return load_int((const int32_t *)from); }

INLINE void multiply_rows(const uint8_t *a, const int8_t *b, int64_t words, int32_t *sums, int64_t stride, int add, Prefetch ahead, const int rows, const int prefetches) {
    vint c[ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) c[r][j] = add ? load_int(sums + r * stride + WIDTH * j) : (vint){0};
    for (; words > 0; words--, a += ROWS * WORD, b += 2 * WIDTH * WORD) {
        if (prefetches) prefetch_step(&ahead);
        const vint left = load_words(b), right = load_words(b + WIDTH * WORD);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            int32_t four;
            memcpy(&four, a + r * WORD, WORD);
            const vint row = four - (vint){0};
            c[r][0] = DOT(c[r][0], row, left);
            c[r][1] = DOT(c[r][1], row, right);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) *(vint_unaligned *)(sums + r * stride + WIDTH * j) = c[r][j];
}

static void multiply(const void *a, const void *b, int64_t words, void *sums, int64_t stride, int64_t count, int add, const Prefetch *ahead) {
    if (count > ROWS / 2) {
        if (ahead->step) multiply_rows(a, b, words, sums, stride, add, *ahead, ROWS, 1);
        else multiply_rows(a, b, words, sums, stride, add, *ahead, ROWS, 0);
    } else if (ahead->step) multiply_rows(a, b, words, sums, stride, add, *ahead, ROWS / 2, 1);
    else multiply_rows(a, b, words, sums, stride, add, *ahead, ROWS / 2, 0);
}

/* `count` values of a row times their smooth scales; the others of the vector are 0. */
INLINE vfloat smoothed(const float *row, const float *smooth_scales, int64_t count) {
    const vfloat value = count == WIDTH ? load(row) : load_tail(row, count);
    if (smooth_scales == NULL) return value;
    return value * (count == WIDTH ? load(smooth_scales) : load_tail(smooth_scales, count));
}

static void pack(const Rows *rows, const float *smooth_scales, void *out, float *scales) {
    const int64_t width = rows->width;
#define SMOOTHED(C) smoothed(from + C, smooth_scales ? smooth_scales + C : NULL, min_of(WIDTH, width - C))
    for (int64_t r = 0; r < ROWS; r++) {
        const float *from = rows->start + min_of(r, rows->count - 1) * rows->stride;
        uint8_t *to = (uint8_t *)out + r * WORD;
        vfloat maxima = {0};
        for (int64_t c = 0; c < width; c += WIDTH) maxima = larger_absolute(absolute(SMOOTHED(c)), maxima);
        const float largest = max_absolute_lane(maxima), factor = largest > 1e-30f ? 127.0f / largest : 0.0f;
        if (r < rows->count) scales[r] = largest / 127.0f;
        for (int64_t c = 0; c < width; c += WIDTH) {
            /* rounded to the nearest integer by an instruction of its own: a fused multiply-add would round some values differently */
            const vint rounded = ROUND(SMOOTHED(c) * splat(factor)) + INPUT_OFFSET;
            const vbytes bytes = __builtin_convertvector(rounded, vbytes);
            const int64_t words = divide_up(min_of(WIDTH, width - c), WORD);
            uint8_t copy[WIDTH];
            memcpy(copy, &bytes, WIDTH);
            for (int64_t word = 0; word < words; word++) memcpy(to + (c / WORD + word) * ROWS * WORD, copy + word * WORD, WORD);
        }
    }
#undef SMOOTHED
}

#define INT8_PRODUCT {ROWS, 2 * WIDTH, WORD, 1, PART_BYTES, multiply, pack, NULL, NULL, INPUT_OFFSET}
