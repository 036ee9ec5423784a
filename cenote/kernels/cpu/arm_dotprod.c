/* Level `dotprod`: int8 with SDOT, four products per lane, exact sums in int32. */
#if defined(__aarch64__)
#define WORD 4
#include "arm_int8.h"
#pragma GCC target("arch=armv8.2-a+dotprod")

static inline __attribute__((always_inline)) void multiply_rows(
    const int8_t *a, const int8_t *b, int64_t words, int32_t *sums, int64_t stride, int add, const int rows
) {
    int32x4_t c[8][3];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
        for (int j = 0; j < 3; j++) c[r][j] = add ? vld1q_s32(sums + r * stride + 4 * j) : vdupq_n_s32(0);
    for (; words > 0; words--, a += 32, b += 48) {
        const int8x16_t low = vld1q_s8(a), high = vld1q_s8(a + 16);
#pragma GCC unroll 3
        for (int j = 0; j < 3; j++) {
            const int8x16_t column = vld1q_s8(b + 16 * j);
            c[0][j] = vdotq_laneq_s32(c[0][j], column, low, 0);
            c[1][j] = vdotq_laneq_s32(c[1][j], column, low, 1);
            c[2][j] = vdotq_laneq_s32(c[2][j], column, low, 2);
            c[3][j] = vdotq_laneq_s32(c[3][j], column, low, 3);
            if (rows == 4) continue;
            c[4][j] = vdotq_laneq_s32(c[4][j], column, high, 0);
            c[5][j] = vdotq_laneq_s32(c[5][j], column, high, 1);
            c[6][j] = vdotq_laneq_s32(c[6][j], column, high, 2);
            c[7][j] = vdotq_laneq_s32(c[7][j], column, high, 3);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
        for (int j = 0; j < 3; j++) vst1q_s32(sums + r * stride + 4 * j, c[r][j]);
}

static void multiply(const void *a, const void *b, int64_t words, void *sums, int64_t stride, int64_t count, int add, const Prefetch *ahead) {
    (void)ahead; /* see linear.c */
    if (count > 4) multiply_rows(a, b, words, sums, stride, add, 8);
    else multiply_rows(a, b, words, sums, stride, add, 4);
}

const Product cenote_dotprod_int8 = {8, 12, WORD, 1, PART_BYTES, multiply, pack, NULL, NULL};
#endif
