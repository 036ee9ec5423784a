/* Level `avx2_vnni`: int8 with vectors of 256 bits. */
#include "compiler.h"
#if defined(__x86_64__) && KNOWS_AVX_VNNI_AND_AVX512_BF16
#pragma GCC target("avx2,fma,avxvnni")
#define WIDTH 8
#define ROWS 6
#define PART_BYTES (24 << 10)
#include "x86.h"

#define DOT(SUMS, ROW, COLUMNS) (vint) _mm256_dpbusd_avx_epi32((__m256i)(SUMS), (__m256i)(ROW), (__m256i)(COLUMNS))
#define ROUND(VALUES) (vint) _mm256_cvtps_epi32(VALUES)
#include "x86_int8.h"

const Product cenote_avx2_int8 = INT8_PRODUCT;
#endif
