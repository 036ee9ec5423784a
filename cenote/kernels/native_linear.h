/* Matrix products of rows with packed weights: two tiles per 32 outputs (a panel) and 64 bytes of inputs (a step), each with the weights of
 * 16 outputs. */
#ifndef CENOTE_NATIVE_LINEAR_H
#define CENOTE_NATIVE_LINEAR_H

#include "cpu/linear.h"
#include "native.h"

/* Layout of rows in memory: strides in bytes between blocks of 16 rows, between steps of 64 bytes, and between rows. */
typedef struct {
    const void *start;
    int64_t block, step, row;
    const float *scales; /* int8 rows: one scale per row */
} RowLayout;

static inline RowLayout row_major(const void *start, int64_t row_bytes) {
    return (RowLayout){start, TILE_ROWS * row_bytes, 64, row_bytes, NULL};
}

static inline RowLayout tile_layout(const void *start, int64_t row_bytes) {
    return (RowLayout){start, TILE_ROWS * row_bytes, TILE_BYTES, 64, NULL};
}

static inline uint8_t *tile_row(const void *start, int64_t row, int64_t row_bytes) {
    return (uint8_t *)start + row / TILE_ROWS * TILE_ROWS * row_bytes + row % TILE_ROWS * 64;
}

static inline int is_int8(const PackedLinear *layer) { return layer->format == INT8; }
static inline int64_t num_steps(const PackedLinear *layer) { return layer->inputs / (is_int8(layer) ? 64 : 32); }
static inline int64_t num_panels(const PackedLinear *layer) { return (layer->outputs + PANEL - 1) / PANEL; }

/* Steps of a panel that fit in the L1 cache. */
enum { MAX_STEPS = 16 };

/* out = activation(rows x weights + bias) in bfloat16, for the panels from `first` to `last`; column 0 of `out` is panel `first`.
 * scratch: linear_scratch_bytes(count). */
void cenote_linear_rows(
    const PackedLinear *layer, const RowLayout *rows, int64_t count, int64_t first, int64_t last, const RowLayout *out, float *scratch
);

/* sums = rows x weights (+= if `add`), as [count / 32][panels][32][32], for the panels from `first` to `last` and the input steps
 * from `begin` to `end`; step 0 of `rows` is step `begin`. Weight scales and bias are not applied. */
void cenote_linear_partial_sums(
    const PackedLinear *layer, const RowLayout *rows, int64_t count, int64_t first, int64_t last, int64_t begin, int64_t end, int add,
    float *sums, float *scratch
);

/* Quantize a row of bfloat16, stored in groups of 32 `step` bytes apart, to int8 in tile layout; return its scale.
 * smooth_scales: as in PackedLinear. */
float cenote_quantize(const void *row, int64_t step, int64_t width, const float *smooth_scales, void *out);

static inline size_t linear_scratch_bytes(int64_t count) {
    return max_i64(4 * TILE_ROWS, round_up(count, 2 * TILE_ROWS)) * PANEL * sizeof(float);
}

#endif
