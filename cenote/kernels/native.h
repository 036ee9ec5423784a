/* Shared by the native kernels: bfloat16 conversion, AMX tiles, and activation functions on vectors of 16 floats. */
#ifndef CENOTE_NATIVE_H
#define CENOTE_NATIVE_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/level.h"
#include "cpu/scratch.h"

#pragma GCC target("prfchw,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16,amx-int8")
#include "cpu/amx_tiles.h"
#include <immintrin.h>

typedef uint16_t bf16;

static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t round_up(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

#define LOG2_E 1.44269504f

/* Transpose a 16 x 16 matrix of 4-byte words. */
static inline void transpose(const __m512i in[16], uint32_t *out) {
    __m512i a[16], b[16];
    for (int i = 0; i < 8; i++) {
        a[2 * i] = _mm512_unpacklo_epi32(in[2 * i], in[2 * i + 1]);
        a[2 * i + 1] = _mm512_unpackhi_epi32(in[2 * i], in[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) { /* b[4i + c]: column c of every group of four columns, rows 4i to 4i + 3 */
        b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
    }
    for (int c = 0; c < 4; c++) {
        __m512i even_low = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88), odd_low = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xdd);
        __m512i even_high = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88);
        __m512i odd_high = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xdd);
        _mm512_store_si512(out + 16 * c, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
        _mm512_store_si512(out + 16 * (4 + c), _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
        _mm512_store_si512(out + 16 * (8 + c), _mm512_shuffle_i32x4(even_low, even_high, 0xdd));
        _mm512_store_si512(out + 16 * (12 + c), _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
    }
}

/* Mask of the elements that exist among the next 32, with `left` elements left. */
static inline __mmask32 tail_mask(int64_t left) { return left >= 32 ? 0xffffffffu : left <= 0 ? 0 : (1u << left) - 1; }

static inline __m512 bf16_to_f32(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
static inline __m256i f32_to_bf16(__m512 x) { return (__m256i)_mm512_cvtneps_pbh(x); }
static inline __m512i f32x2_to_bf16(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

/* 2^x with a relative error of 1e-4, a twentieth of the rounding error of bfloat16. */
static inline __m512 exp2_ps(__m512 x) {
    const __m512 fraction = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); /* x - floor(x) */
    __m512 y = _mm512_set1_ps(7.80245236e-02f);
    y = _mm512_fmadd_ps(y, fraction, _mm512_set1_ps(2.26067164e-01f));
    y = _mm512_fmadd_ps(y, fraction, _mm512_set1_ps(6.95833531e-01f));
    y = _mm512_fmadd_ps(y, fraction, _mm512_set1_ps(9.99925220e-01f));
    return _mm512_scalef_ps(y, x); /* scalef applies floor(x) itself */
}

/* In the minima and maxima below the variable is the second operand: if either is NaN, the second is returned, so NaN propagates. */

/* 1 / (1 + e^-x) */
static inline __m512 sigmoid(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 power = _mm512_mul_ps(x, _mm512_set1_ps(-1.44269504f));
    power = _mm512_max_ps(_mm512_set1_ps(-120.0f), _mm512_min_ps(_mm512_set1_ps(120.0f), power));
    return _mm512_div_ps(one, _mm512_add_ps(one, exp2_ps(power)));
}

/* The normal CDF at -z as a + bz + cz^2, one quadratic per sixth from 0 to 31/6; the absolute error is below 4e-6. */
static const float GELU_TABLE[3][32] __attribute__((aligned(64))) = {
    {
        5.0000119e-01f, 5.0024307e-01f, 5.0211293e-01f, 5.0641626e-01f, 5.1259375e-01f, 5.1862884e-01f, 5.2146977e-01f, 5.1760477e-01f,
        5.0424933e-01f, 4.7973648e-01f, 4.4407514e-01f, 3.9890623e-01f, 3.4713280e-01f, 2.9232743e-01f, 2.3808749e-01f, 1.8749169e-01f,
        1.4275296e-01f, 1.0509591e-01f, 7.4827537e-02f, 5.1536072e-02f, 3.4343615e-02f, 2.2150360e-02f, 1.3830274e-02f, 8.3619691e-03f,
        4.8969099e-03f, 2.7782682e-03f, 1.5274308e-03f, 8.1390789e-04f, 4.2043641e-04f, 2.1057951e-04f, 1.0228140e-04f, 4.8184895e-05f,
    },
    {
        -3.9920142e-01f, -4.0401340e-01f, -4.1893622e-01f, -4.3967775e-01f, -4.6100879e-01f, -4.7728333e-01f, -4.8365805e-01f, -4.7667891e-01f,
        -4.5543635e-01f, -4.2091432e-01f, -3.7591124e-01f, -3.2429636e-01f, -2.7025124e-01f, -2.1759954e-01f, -1.6933887e-01f, -1.2741747e-01f,
        -9.2735514e-02f, -6.5309457e-02f, -4.4522461e-02f, -2.9390400e-02f, -1.8792909e-02f, -1.1643204e-02f, -6.9913021e-03f, -4.0696561e-03f,
        -2.2970429e-03f, -1.2574228e-03f, -6.6769152e-04f, -3.4397506e-04f, -1.7195022e-04f, -8.3419087e-05f, -3.9280068e-05f, -1.7954595e-05f,
    },
    {
        8.2995845e-03f, 3.2716241e-02f, 6.2765934e-02f, 8.7841459e-02f, 1.0628606e-01f, 1.1726770e-01f, 1.2084369e-01f, 1.1769307e-01f,
        1.0924342e-01f, 9.7085461e-02f, 8.2884215e-02f, 6.8136275e-02f, 5.4029934e-02f, 4.1382596e-02f, 3.0646246e-02f, 2.1961855e-02f,
        1.5239821e-02f, 1.0245769e-02f, 6.6766343e-03f, 4.2187297e-03f, 2.5855605e-03f, 1.5374259e-03f, 8.8715879e-04f, 4.9689412e-04f,
        2.7018308e-04f, 1.4264330e-04f, 7.3131196e-05f, 3.6413676e-05f, 1.7610990e-05f, 8.2737452e-06f, 3.7762200e-06f, 1.6744918e-06f,
    },
};

static inline __m512 lookup(const float table[32], __m512i index) {
    return _mm512_permutex2var_ps(_mm512_load_ps(table), index, _mm512_load_ps(table + 16));
}

/* GELU: x times the normal CDF at x. */
static inline __m512 gelu(__m512 x) {
    const __m512 z = _mm512_min_ps(_mm512_set1_ps(5.2f), _mm512_abs_ps(x));
    /* floats above 2^23 are integers: the low bits of the sum are the index of the nearest sixth */
    const __m512i sixth = _mm512_castps_si512(_mm512_fmadd_ps(z, _mm512_set1_ps(6.0f), _mm512_set1_ps(8388608.0f)));
    __m512 below = _mm512_fmadd_ps(lookup(GELU_TABLE[2], sixth), z, lookup(GELU_TABLE[1], sixth));
    below = _mm512_fmadd_ps(below, z, lookup(GELU_TABLE[0], sixth));
    return _mm512_fnmadd_ps(z, below, _mm512_max_ps(_mm512_setzero_ps(), x));
}

static inline __attribute__((always_inline)) __m512 apply_activation(__m512 x, int activation) {
    switch (activation) {
    case GELU: return gelu(x);
    case GELU_TANH: {
        __m512 cube = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
        __m512 cubic = _mm512_fmadd_ps(cube, _mm512_set1_ps(0.044715f), x);
        return _mm512_mul_ps(x, sigmoid(_mm512_mul_ps(cubic, _mm512_set1_ps(1.5957691216f))));
    }
    case RELU: return _mm512_max_ps(_mm512_setzero_ps(), x);
    case SILU: return _mm512_mul_ps(x, sigmoid(x));
    case QUICK_GELU: return _mm512_mul_ps(x, sigmoid(_mm512_mul_ps(x, _mm512_set1_ps(1.702f))));
    default: return x;
    }
}

#endif
