/* What the x86-64 levels share. */
#ifndef CENOTE_X86_H
#define CENOTE_X86_H

#include "level.h"
#include <immintrin.h>

extern const Product cenote_avx2_float32, cenote_avx512_float32, cenote_avx512_bfloat16, cenote_avx2_int8, cenote_avx512_int8;
extern const Product cenote_amx_bfloat16, cenote_amx_int8;
extern const TileKernels cenote_amx_tiles;
extern const RowKernels cenote_avx2_rows, cenote_avx512_rows;

/* In native_processor.c, native_attention.c and native_layers.c. */
int cenote_has_amx(void);
size_t cenote_amx_attention_bytes(int64_t length, int64_t head_dim);
void cenote_amx_attend(const HeadGroup *heads, int64_t length, uint8_t *memory);
extern const struct TileLayers cenote_amx_layers;

#endif
