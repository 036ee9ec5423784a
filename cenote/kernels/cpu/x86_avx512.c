/* Level `avx512`: float32. A tile of 12 rows x 32 columns fills 24 of the 32 vector registers with sums. */
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#define WIDTH 16
#define ROWS 12
#define PART_BYTES (64 << 10)
#define AHEAD_WORDS 8
#define EXCEEDS_L1 1
#include "x86.h"

enum { UNROLLED_WORDS = 1 };

#include "row_kernels.h"
#include "x86_float32.h"

const Product cenote_avx512_float32 = FLOAT32_PRODUCT;
const RowKernels cenote_avx512_rows = ROW_KERNELS;
#endif
