/* Level `avx512_vnni`: int8 with vectors of 512 bits. */
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,avx512vnni,prefer-vector-width=512")
#define WIDTH 16
#define ROWS 8
#define PART_BYTES (24 << 10)
#include "x86.h"

#define DOT(SUMS, ROW, COLUMNS) (vint) _mm512_dpbusd_epi32((__m512i)(SUMS), (__m512i)(ROW), (__m512i)(COLUMNS))
#define ROUND(VALUES) (vint) _mm512_cvtps_epi32(VALUES)
#include "x86_int8.h"

const Product cenote_avx512_int8 = INT8_PRODUCT;
#endif
