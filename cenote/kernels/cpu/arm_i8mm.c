/* Level `i8mm`: int8 with SMMLA, which multiplies two rows of 8 inputs with two columns; exact sums in int32. */
#include "compiler.h"
#if defined(__aarch64__) && KNOWS_ARM_I8MM_AND_BF16
#define WORD 8
#include "arm_int8.h"
#pragma GCC target("arch=armv8.2-a+i8mm")

static inline __attribute__((always_inline)) void add_or_store(int32_t *to, int32x4_t value, int add) {
    vst1q_s32(to, add ? vaddq_s32(vld1q_s32(to), value) : value);
}

static inline __attribute__((always_inline)) void multiply_rows(
    const int8_t *a, const int8_t *b, int64_t words, int32_t *sums, int64_t stride, int add, const int pairs
) {
    int32x4_t c[4][6]; /* of two rows and two columns each */
#pragma GCC unroll 4
    for (int r = 0; r < pairs; r++)
#pragma GCC unroll 6
        for (int j = 0; j < 6; j++) c[r][j] = vdupq_n_s32(0);
    for (; words > 0; words--, a += 64, b += 96) {
        int8x16_t rows[4];
#pragma GCC unroll 4
        for (int r = 0; r < pairs; r++) rows[r] = vld1q_s8(a + 16 * r);
#pragma GCC unroll 6
        for (int j = 0; j < 6; j++) {
            const int8x16_t columns = vld1q_s8(b + 16 * j);
#pragma GCC unroll 4
            for (int r = 0; r < pairs; r++) c[r][j] = vmmlaq_s32(c[r][j], rows[r], columns);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < pairs; r++)
#pragma GCC unroll 3
        for (int j = 0; j < 3; j++) {
            const int64x2_t left = vreinterpretq_s64_s32(c[r][2 * j]), right = vreinterpretq_s64_s32(c[r][2 * j + 1]);
            int32_t *to = sums + 2 * r * stride + 4 * j;
            add_or_store(to, vreinterpretq_s32_s64(vzip1q_s64(left, right)), add);
            add_or_store(to + stride, vreinterpretq_s32_s64(vzip2q_s64(left, right)), add);
        }
}

static void multiply(const void *a, const void *b, int64_t words, void *sums, int64_t stride, int64_t count, int add, const Prefetch *ahead) {
    (void)ahead; /* see linear.c */
    if (count > 4) multiply_rows(a, b, words, sums, stride, add, 4);
    else multiply_rows(a, b, words, sums, stride, add, 2);
}

const Product cenote_i8mm_int8 = {8, 12, WORD, 1, PART_BYTES, multiply, pack, NULL, NULL};
#endif
