/* Vectors of WIDTH floats. A level file defines WIDTH and its target, then includes this file: the vector types of gcc give the
 * same code for every instruction set. */
#ifndef CENOTE_VECTORS_H
#define CENOTE_VECTORS_H

#include "level.h"

typedef float vfloat __attribute__((vector_size(4 * WIDTH)));
typedef int32_t vint __attribute__((vector_size(4 * WIDTH)));
typedef float vfloat_unaligned __attribute__((vector_size(4 * WIDTH), aligned(4)));
typedef int32_t vint_unaligned __attribute__((vector_size(4 * WIDTH), aligned(4)));

#define INLINE static inline __attribute__((always_inline))

INLINE vfloat load(const float *from) { return *(const vfloat_unaligned *)from; }
INLINE void store(float *to, vfloat value) { *(vfloat_unaligned *)to = value; }
INLINE vint load_int(const int32_t *from) { return *(const vint_unaligned *)from; }
INLINE vfloat splat(float value) { return value - (vfloat){0}; }
/* NaN propagates: x is returned if it is NaN. larger_absolute: of values without a sign; NaN is returned if there is one. */
#if defined(__aarch64__)
INLINE vfloat at_least(vfloat x, float limit) { return vmaxq_f32(x, splat(limit)); }
INLINE vfloat at_most(vfloat x, float limit) { return vminq_f32(x, splat(limit)); }
INLINE vfloat larger(vfloat x, vfloat y) { return vmaxq_f32(x, y); }
INLINE vfloat larger_absolute(vfloat x, vfloat y) { return vmaxq_f32(x, y); }
#elif WIDTH == 8 /* the second operand is returned if one of both is NaN */
INLINE vfloat at_least(vfloat x, float limit) { return _mm256_max_ps(splat(limit), x); }
INLINE vfloat at_most(vfloat x, float limit) { return _mm256_min_ps(splat(limit), x); }
INLINE vfloat larger(vfloat x, vfloat y) { return _mm256_max_ps(y, x); }
INLINE vfloat larger_absolute(vfloat x, vfloat y) { return (vfloat)_mm256_max_epi32((__m256i)x, (__m256i)y); } /* of bits */
#else
INLINE vfloat at_least(vfloat x, float limit) { return _mm512_max_ps(splat(limit), x); }
INLINE vfloat at_most(vfloat x, float limit) { return _mm512_min_ps(splat(limit), x); }
INLINE vfloat larger(vfloat x, vfloat y) { return _mm512_max_ps(y, x); }
INLINE vfloat larger_absolute(vfloat x, vfloat y) { return (vfloat)_mm512_max_epi32((__m512i)x, (__m512i)y); } /* of bits */
#endif

/* A constant to which a product is added. ARM's instruction adds to its destination: a constant in a register would have to be copied first,
 * which takes as long as the multiplication. A load takes none of its units; `volatile` keeps the compiler from loading it only once. */
#define FOUR_TIMES(CONSTANT) {CONSTANT, CONSTANT, CONSTANT, CONSTANT}
#if defined(__aarch64__)
INLINE vfloat addend(const float constant[4]) {
    vfloat value;
    __asm__ volatile("ldr %q0, %1" : "=w"(value) : "m"(*(const vfloat_unaligned *)constant));
    return value;
}
#else
INLINE vfloat addend(const float constant[4]) { return splat(*constant); }
#endif
INLINE vfloat absolute(vfloat x) { return (vfloat)((vint)x & 0x7fffffff); }

/* max_lane: any lane if one is NaN. max_absolute_lane: of values without a sign; NaN if there is one. */
#if defined(__aarch64__)
INLINE float sum_lanes(vfloat x) { return vpadds_f32(vadd_f32(vget_low_f32(x), vget_high_f32(x))); }
INLINE float max_lane(vfloat x) { return vmaxvq_f32(x); }
INLINE float max_absolute_lane(vfloat x) { return vmaxvq_f32(x); }
#else
INLINE __m128 larger_bits(__m128 x, __m128 y) { return (__m128)_mm_max_epi32((__m128i)x, (__m128i)y); }

/* The two or four parts of 128 bits, then the lanes of one. */
#define FOLD_LANES(NAME, FOLD)                                                                            \
    INLINE float NAME(vfloat x) {                                                                         \
        const union {                                                                                     \
            vfloat whole;                                                                                 \
            __m128 parts[WIDTH / 4];                                                                      \
        } vector = {x};                                                                                   \
        __m128 four = FOLD(vector.parts[0], vector.parts[1]);                                             \
        if (WIDTH == 16) four = FOLD(four, FOLD(vector.parts[WIDTH / 4 - 2], vector.parts[WIDTH / 4 - 1])); \
        four = FOLD(four, _mm_movehl_ps(four, four));                                                     \
        return _mm_cvtss_f32(FOLD(four, _mm_movehdup_ps(four)));                                          \
    }
FOLD_LANES(sum_lanes, _mm_add_ps)
FOLD_LANES(max_lane, _mm_max_ps)
FOLD_LANES(max_absolute_lane, larger_bits)
#undef FOLD_LANES
#endif

/* Lanes from `low` to `high` - 1, minus infinity elsewhere. */
INLINE vfloat keep_lanes(vfloat x, int64_t low, int64_t high) {
    static const int32_t lanes[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const vint lane = load_int(lanes), kept = (lane >= (int32_t)max_of(low, 0)) & (lane < (int32_t)min_of(high, WIDTH));
    return (vfloat)(((vint)x & kept) | ((vint)splat(-__builtin_inff()) & ~kept));
}

/* The first `count` elements, the others 0; and a store of them. */
INLINE vfloat load_tail(const float *from, int64_t count) {
    vfloat value = {0};
    for (int64_t i = 0; i < count; i++) value[i] = from[i];
    return value;
}
INLINE void store_tail(float *to, vfloat value, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = value[i];
}

#endif
