/* What the native kernels share: bfloat16, tiles, and functions of 16 numbers at a time. */
#ifndef CENOTE_NATIVE_H
#define CENOTE_NATIVE_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16,amx-int8")
#include <immintrin.h>

typedef uint16_t bf16;

/* a tile is 16 rows of 64 bytes: 16 words of 4 bytes, 32 bfloat16 or 64 int8 */
enum { ROWS = 16, TILE_BYTES = 1024, TILE_WORDS = 256, STEP = 32, PANEL = 32 };

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t whole(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

#define LOG2_E 1.44269504f

/* Memory of the calling thread, kept from call to call; NULL when there is none. Contents do not last. */
enum { OWN, SHARED, SLOTS };
uint8_t *cenote_memory(int slot, size_t bytes);

/* The next part of some memory, on a line of its own. */
static inline void *part_of(uint8_t **memory, size_t bytes) {
    uint8_t *part = *memory;
    *memory += (bytes + 63) / 64 * 64;
    return part;
}

/* Tiles of full size, and numbers too small for their type become 0: the processor is slow with them. */
static inline unsigned enter_tiles(void) {
    struct {
        uint8_t palette, start_row, unused[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } layout = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) layout.row_bytes[tile] = 64, layout.rows[tile] = ROWS;
    _tile_loadconfig(&layout);
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    return before;
}

static inline void leave_tiles(unsigned before) {
    _tile_release();
    _mm_setcsr(before);
}

/* 16 rows of 16 words, columns become rows. */
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

static inline __m512 wide(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
static inline __m256i narrow(__m512 x) { return (__m256i)_mm512_cvtneps_pbh(x); }
static inline __m512i narrow_both(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

/* 2 to the power of x; the relative error is 1e-4, a twentieth of what rounding to bfloat16 costs. */
static inline __m512 power_of_two(__m512 x) {
    const __m512 part = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); /* above the integer below x */
    __m512 y = _mm512_set1_ps(7.80245236e-02f);
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(2.26067164e-01f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(6.95833531e-01f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(9.99925220e-01f));
    return _mm512_scalef_ps(y, x); /* which takes that integer by itself */
}

/* Minima and maxima below name the unknown second: where one of two is not a number, the second comes out. */

enum { NONE, GELU, GELU_TANH, RELU, SILU, TANH, SIGMOID };

/* 1 / (1 + e^-x) */
static inline __m512 sigmoid(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 power = _mm512_mul_ps(x, _mm512_set1_ps(-1.44269504f));
    power = _mm512_max_ps(_mm512_set1_ps(-120.0f), _mm512_min_ps(_mm512_set1_ps(120.0f), power));
    return _mm512_div_ps(one, _mm512_add_ps(one, power_of_two(power)));
}

/* x times the normal distribution up to x. The part below -|x| is 2 to a polynomial, so that it is right in the tail too. */
static inline __m512 gelu(__m512 x) {
    const __m512 far = _mm512_min_ps(_mm512_set1_ps(10.0f), _mm512_abs_ps(x));
    __m512 y = _mm512_set1_ps(-2.33251281e-4f);
    y = _mm512_fmadd_ps(y, far, _mm512_set1_ps(4.86977398e-3f));
    y = _mm512_fmadd_ps(y, far, _mm512_set1_ps(-4.45990153e-2f));
    y = _mm512_fmadd_ps(y, far, _mm512_set1_ps(-4.69681084e-1f));
    y = _mm512_fmadd_ps(y, far, _mm512_set1_ps(-1.14626086f));
    y = _mm512_fmadd_ps(y, far, _mm512_set1_ps(-1.00035906f));
    return _mm512_fnmadd_ps(far, power_of_two(y), _mm512_max_ps(_mm512_setzero_ps(), x));
}

static inline __attribute__((always_inline)) __m512 activated(__m512 x, int activation) {
    switch (activation) {
    case GELU: return gelu(x);
    case GELU_TANH: {
        __m512 cube = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
        __m512 inner = _mm512_fmadd_ps(cube, _mm512_set1_ps(0.044715f), x);
        return _mm512_mul_ps(x, sigmoid(_mm512_mul_ps(inner, _mm512_set1_ps(1.5957691216f))));
    }
    case RELU: return _mm512_max_ps(_mm512_setzero_ps(), x);
    case SILU: return _mm512_mul_ps(x, sigmoid(x));
    case TANH: return _mm512_fmsub_ps(_mm512_set1_ps(2.0f), sigmoid(_mm512_add_ps(x, x)), _mm512_set1_ps(1.0f));
    case SIGMOID: return sigmoid(x);
    default: return x;
    }
}

#endif
