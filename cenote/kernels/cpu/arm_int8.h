/* Packing of int8 rows into words of WORD inputs, for the dotprod and i8mm levels. One scale per row. */
#include "arm.h"

static inline __attribute__((always_inline)) int8x8_t quantize_eight(const float *row, const float *smooth_scales, int64_t c, float factor) {
    float32x4_t low = vld1q_f32(row + c), high = vld1q_f32(row + c + 4);
    if (smooth_scales) low = vmulq_f32(low, vld1q_f32(smooth_scales + c)), high = vmulq_f32(high, vld1q_f32(smooth_scales + c + 4));
    const int32x4_t first = vcvtnq_s32_f32(vmulq_n_f32(low, factor)), second = vcvtnq_s32_f32(vmulq_n_f32(high, factor));
    return vqmovn_s16(vcombine_s16(vqmovn_s32(first), vqmovn_s32(second)));
}

static void pack(const Rows *rows, const float *smooth_scales, void *out, float *scales) {
    for (int64_t r = 0; r < 8; r++) {
        int8_t *to = (int8_t *)out + r * WORD;
        const float *from = rows->start + min_of(r, rows->count - 1) * rows->stride;
        const float largest = max_absolute(from, smooth_scales, rows->width);
        const float factor = largest > 1e-30f ? 127.0f / largest : 0.0f;
        if (r < rows->count) scales[r] = largest / 127.0f;
        int64_t c = 0;
        for (; c + 8 <= rows->width; c += 8) {
            const int8x8_t eight = quantize_eight(from, smooth_scales, c, factor);
            if (WORD == 8) vst1_s8(to + 8 * c, eight);
            else {
                vst1_lane_s32((int32_t *)(to + 8 * c), vreinterpret_s32_s8(eight), 0);
                vst1_lane_s32((int32_t *)(to + 8 * c + 32), vreinterpret_s32_s8(eight), 1);
            }
        }
        for (const int64_t end = divide_up(rows->width, WORD) * WORD; c < end; c++) {
            const float value = c >= rows->width ? 0.0f : from[c] * (smooth_scales ? smooth_scales[c] : 1.0f) * factor;
            to[c / WORD * 8 * WORD + c % WORD] = (int8_t)__builtin_rintf(value);
        }
    }
}
