/* Level `avx2`: float32. A tile of 6 rows x 16 columns fills 12 of the 16 vector registers with sums. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma")
#define WIDTH 8
#define ROWS 6
#define PART_BYTES (16 << 10)
#define AHEAD_WORDS 48
#define EXCEEDS_L1 0
#include "x86.h"

enum { UNROLLED_WORDS = 4 };

#include "row_kernels.h"
#include "x86_float32.h"

const Product cenote_avx2_float32 = FLOAT32_PRODUCT;
const RowKernels cenote_avx2_rows = ROW_KERNELS;
#endif
