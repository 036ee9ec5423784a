/* The intrinsics of AVX-512, VNNI, BF16 and AMX that the kernels use, in plain C, for CPUs and emulators that lack them. Code that is compiled
 * for AVX-512 uses its instructions. */
#ifndef CENOTE_EMULATED_INTRINSICS_H
#define CENOTE_EMULATED_INTRINSICS_H

#include_next <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef int32_t Words8 __attribute__((vector_size(32)));
typedef int32_t Words16 __attribute__((vector_size(64)));

#define EMULATED static inline __attribute__((unused))

/* Four products of unsigned with signed bytes, added to a sum that wraps around. */
EMULATED int32_t emulated_dot(int32_t sum, int32_t four_unsigned, int32_t four_signed) {
    uint32_t total = (uint32_t)sum;
    for (int byte = 0; byte < 4; byte++)
        total += (uint32_t)((int32_t)(uint8_t)(four_unsigned >> 8 * byte) * (int8_t)(four_signed >> 8 * byte));
    return (int32_t)total;
}

EMULATED __m256i emulated_dpbusd_256(__m256i sums, __m256i a, __m256i b) {
    Words8 out;
    for (int i = 0; i < 8; i++) out[i] = emulated_dot(((Words8)sums)[i], ((Words8)a)[i], ((Words8)b)[i]);
    return (__m256i)out;
}

EMULATED __m512i emulated_dpbusd_512(__m512i sums, __m512i a, __m512i b) {
    Words16 out;
    for (int i = 0; i < 16; i++) out[i] = emulated_dot(((Words16)sums)[i], ((Words16)a)[i], ((Words16)b)[i]);
    return (__m512i)out;
}

/* The second operand if one of both is NaN, as the instructions do. */
EMULATED __m512 emulated_max_ps(__m512 a, __m512 b) {
    __m512 out;
    for (int i = 0; i < 16; i++) out[i] = a[i] > b[i] ? a[i] : b[i];
    return out;
}

EMULATED __m512 emulated_min_ps(__m512 a, __m512 b) {
    __m512 out;
    for (int i = 0; i < 16; i++) out[i] = a[i] < b[i] ? a[i] : b[i];
    return out;
}

EMULATED __m512i emulated_max_epi32(__m512i a, __m512i b) {
    Words16 out;
    for (int i = 0; i < 16; i++) out[i] = ((Words16)a)[i] > ((Words16)b)[i] ? ((Words16)a)[i] : ((Words16)b)[i];
    return (__m512i)out;
}

EMULATED __m512i emulated_cvtps_epi32(__m512 values) {
    Words16 out;
    for (int i = 0; i < 16; i++) out[i] = _mm_cvtss_si32(_mm_set_ss(values[i]));
    return (__m512i)out;
}

/* Rounded to nearest even; NaN stays NaN. */
EMULATED uint16_t emulated_bfloat16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Adjacent floats to adjacent elements; both are vectors or parts of them. */
EMULATED void emulated_round(const void *from, int count, void *to) {
    for (int i = 0; i < count; i++) {
        float value;
        memcpy(&value, (const float *)from + i, sizeof value);
        const uint16_t rounded = emulated_bfloat16(value);
        memcpy((uint16_t *)to + i, &rounded, sizeof rounded);
    }
}

EMULATED __m128bh emulated_cvtneps_pbh(__m256 values) {
    __m128bh packed;
    emulated_round(&values, 8, &packed);
    return packed;
}

EMULATED float emulated_float32(uint16_t value) {
    const uint32_t bits = (uint32_t)value << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

/* The product of the odd elements is added first, and each sum is rounded once. */
EMULATED __m512 emulated_dpbf16_ps(__m512 sums, __m512bh a, __m512bh b) {
    uint16_t left[32], right[32];
    memcpy(left, &a, sizeof left), memcpy(right, &b, sizeof right);
    for (int i = 0; i < 16; i++)
        for (int element = 2 * i + 1; element >= 2 * i; element--)
            sums[i] = __builtin_fmaf(emulated_float32(left[element]), emulated_float32(right[element]), sums[i]);
    return sums;
}

/* The elements of the second operand come first. */
EMULATED __m512bh emulated_cvtne2ps_pbh(__m512 high, __m512 low) {
    __m512bh packed;
    emulated_round(&low, 16, &packed);
    emulated_round(&high, 16, (uint16_t *)&packed + 16);
    return packed;
}

EMULATED __m256bh emulated_cvtneps_pbh_512(__m512 values) {
    __m256bh packed;
    emulated_round(&values, 16, &packed);
    return packed;
}

/* Eight tile registers of 16 rows of 64 bytes, in amx.c; they exist between a configuration and a release. */
extern _Thread_local uint8_t emulated_tiles[8][16][64];
extern _Thread_local int emulated_has_tiles;

EMULATED void emulated_tile_load(int tile, const void *from, int64_t stride) {
    if (!emulated_has_tiles) __builtin_trap();
    for (int row = 0; row < 16; row++) memcpy(emulated_tiles[tile][row], (const uint8_t *)from + row * stride, 64);
}

EMULATED void emulated_tile_store(int tile, void *to, int64_t stride) {
    for (int row = 0; row < 16; row++) memcpy((uint8_t *)to + row * stride, emulated_tiles[tile][row], 64);
}

/* sums [row][column] += the words of a row of `a` times those of a column of `b`, of which a row has one word per column. */
EMULATED void emulated_tile_dot(int sums, int a, int b, int is_int8) {
    if (!emulated_has_tiles) __builtin_trap();
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 16; column++) {
            int32_t total;
            float sum;
            memcpy(&total, emulated_tiles[sums][row] + 4 * column, 4), memcpy(&sum, &total, 4);
            for (int word = 0; word < 16; word++) {
                const uint8_t *left = emulated_tiles[a][row] + 4 * word, *right = emulated_tiles[b][word] + 4 * column;
                uint16_t pairs[2][2];
                memcpy(pairs[0], left, 4), memcpy(pairs[1], right, 4);
                for (int i = 0; is_int8 && i < 4; i++) total += (int8_t)left[i] * (int8_t)right[i];
                for (int i = 0; !is_int8 && i < 2; i++) sum = __builtin_fmaf(emulated_float32(pairs[0][i]), emulated_float32(pairs[1][i]), sum);
            }
            memcpy(emulated_tiles[sums][row] + 4 * column, is_int8 ? (const void *)&total : (const void *)&sum, 4);
        }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig(layout) (emulated_has_tiles = (layout)->palette)
#define _tile_release() (emulated_has_tiles = 0)
#define _tile_zero(tile) memset(emulated_tiles[tile], 0, sizeof emulated_tiles[tile])
#define _tile_loadd emulated_tile_load
#define _tile_stream_loadd emulated_tile_load
#define _tile_stored emulated_tile_store
#define _tile_dpbf16ps(sums, a, b) emulated_tile_dot(sums, a, b, 0)
#define _tile_dpbssd(sums, a, b) emulated_tile_dot(sums, a, b, 1)

#undef _mm512_cvtne2ps_pbh
#undef _mm512_cvtneps_pbh
#define _mm512_cvtne2ps_pbh emulated_cvtne2ps_pbh
#define _mm512_cvtneps_pbh emulated_cvtneps_pbh_512
#undef _mm256_cvtneps_pbh /* a macro from gcc 13 on */
#define _mm256_cvtneps_pbh emulated_cvtneps_pbh
#define _mm512_dpbf16_ps emulated_dpbf16_ps
#define _mm256_dpbusd_avx_epi32 emulated_dpbusd_256
#define _mm512_dpbusd_epi32 emulated_dpbusd_512
#ifndef __AVX512F__
#define _mm512_max_ps emulated_max_ps
#define _mm512_min_ps emulated_min_ps
#define _mm512_max_epi32 emulated_max_epi32
#define _mm512_cvtps_epi32 emulated_cvtps_epi32
#endif

#endif
