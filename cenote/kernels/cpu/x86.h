/* What the x86-64 levels share. */
#ifndef CENOTE_X86_H
#define CENOTE_X86_H

#include "level.h"
#include <immintrin.h>

extern const Product cenote_avx2_float32, cenote_avx512_float32, cenote_avx512_bfloat16, cenote_avx2_int8, cenote_avx512_int8;
extern const RowKernels cenote_avx2_rows, cenote_avx512_rows;

#endif
