/* Products of rows with packed weights. */
#ifndef CENOTE_NATIVE_LINEAR_H
#define CENOTE_NATIVE_LINEAR_H

#include "native.h"

/* A linear layer. Tiles: per 32 outputs and 64 bytes of inputs two tiles, each with the weights of 16 outputs. */
typedef struct {
    const uint8_t *tiles;
    const float *bias;   /* [outputs, in whole panels] */
    const float *scales; /* of int8 weights, likewise; NULL: the weights are bfloat16 */
    const float *smooth_scales; /* what int8 inputs are multiplied with first, in every 32 those in even places first; or NULL */
    int64_t inputs, outputs;
    int64_t activation;
} Linear;

/* Rows as tiles read them: distances in bytes between blocks of 16 rows, between steps of 64 bytes, between rows. */
typedef struct {
    const void *start;
    int64_t block, step, row;
    const float *scales; /* of int8 rows, one for each */
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

static inline int is_int8(const Linear *layer) { return layer->scales != NULL; }
static inline int64_t num_steps(const Linear *layer) { return layer->inputs / (is_int8(layer) ? 64 : 32); }
static inline int64_t num_panels(const Linear *layer) { return (layer->outputs + PANEL - 1) / PANEL; }

/* Of a panel as much as stays in the first cache. */
enum { MAX_STEPS = 16 };

/* out = activation(rows x weights + bias), bfloat16, for the panels from `first` to `last`, which `out` counts from `first`.
 * `room` is [count or 64 if that is more, in whole blocks of 32][32] floats. */
void cenote_linear_rows(const Linear *layer, const RowLayout *rows, int64_t count, int64_t first, int64_t last, const RowLayout *out, float *scratch);

/* sums = rows x weights, or += if asked to add, as [count / 32][panels][32][32], for the panels from `first` to `last` and the inputs from
 * step `begin` to `end`, which `rows` counts from `begin`. The layer's own scales are left for later. */
void cenote_linear_partial_sums(
    const Linear *layer, const RowLayout *rows, int64_t count, int64_t first, int64_t last, int64_t begin, int64_t end, int add,
    float *sums, float *scratch
);

/* A row of bfloat16, 32 at a time `step` bytes apart, becomes int8 in tiles; returns what a unit of it is worth.
 * `evened` as in a linear layer. */
float cenote_quantize(const void *row, int64_t step, int64_t width, const float *smooth_scales, void *out);

static inline size_t linear_scratch_bytes(int64_t count) { return max_i64(4 * TILE_ROWS, round_up(count, 2 * TILE_ROWS)) * PANEL * sizeof(float); }

#endif
