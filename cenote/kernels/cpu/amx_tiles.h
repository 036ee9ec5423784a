/* The tile registers of AMX. A file that includes this sets its target first. */
#ifndef CENOTE_AMX_TILES_H
#define CENOTE_AMX_TILES_H

#include <immintrin.h>
#include <stdint.h>

/* A tile is 16 rows of 64 bytes: 16 words of 4 bytes, 32 bfloat16 or 64 int8 per row. A panel is 32 output columns. */
enum { TILE_ROWS = 16, TILE_BYTES = 1024, TILE_WORDS = 256, STEP = 32, PANEL = 32 };

/* Configure eight full-size tiles and flush denormals to zero (FTZ, DAZ), which are slow. Returns the previous MXCSR. */
static inline unsigned amx_begin(void) {
    struct {
        uint8_t palette, start_row, unused[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } layout = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) layout.row_bytes[tile] = 64, layout.rows[tile] = TILE_ROWS;
    __asm__ volatile("" : : "m"(layout)); /* gcc 12 takes _tile_loadconfig to read a pointer only, and drops the stores of the rest */
    _tile_loadconfig(&layout);
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    return before;
}

static inline void amx_end(unsigned before) {
    _tile_release();
    _mm_setcsr(before);
}

#endif
