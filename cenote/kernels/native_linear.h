/* Products of rows with packed weights. */
#ifndef CENOTE_NATIVE_LINEAR_H
#define CENOTE_NATIVE_LINEAR_H

#include "native.h"

/* A linear layer. Tiles: per 32 outputs and 64 bytes of inputs two tiles, each with the weights of 16 outputs. */
typedef struct {
    const uint8_t *tiles;
    const float *bias;   /* [outputs, in whole panels] */
    const float *scales; /* of int8 weights, likewise; NULL: the weights are bfloat16 */
    const float *evened; /* what int8 inputs are multiplied with first, in every 32 those in even places first; or NULL */
    int64_t inputs, outputs;
    int64_t activation;
} Linear;

/* Rows as tiles read them: distances in bytes between blocks of 16 rows, between steps of 64 bytes, between rows. */
typedef struct {
    const void *start;
    int64_t block, step, row;
    const float *scales; /* of int8 rows, one for each */
} Rows;

static inline Rows side_by_side(const void *start, int64_t row_bytes) {
    return (Rows){start, ROWS * row_bytes, 64, row_bytes, NULL};
}

static inline Rows in_tiles(const void *start, int64_t row_bytes) {
    return (Rows){start, ROWS * row_bytes, TILE_BYTES, 64, NULL};
}

static inline uint8_t *row_in_tiles(const void *start, int64_t row, int64_t row_bytes) {
    return (uint8_t *)start + row / ROWS * ROWS * row_bytes + row % ROWS * 64;
}

static inline int is_int8(const Linear *layer) { return layer->scales != NULL; }
static inline int64_t steps_of(const Linear *layer) { return layer->inputs / (is_int8(layer) ? 64 : 32); }
static inline int64_t panels_of(const Linear *layer) { return (layer->outputs + PANEL - 1) / PANEL; }

/* Of a panel as much as stays in the first cache. */
enum { MAX_STEPS = 16 };

/* out = activation(rows x weights + bias), bfloat16, for the panels from `first` to `last`, which `out` counts from `first`.
 * `room` is [count or 64 if that is more, in whole blocks of 32][32] floats. */
void cenote_rows_linear(const Linear *layer, const Rows *rows, int64_t count, int64_t first, int64_t last, const Rows *out, float *room);

/* sums = rows x weights, or += if asked to add, as [count / 32][panels][32][32], for the panels from `first` to `last` and the inputs from
 * step `begin` to `end`, which `rows` counts from `begin`. The layer's own scales are left for later. */
void cenote_rows_sums(
    const Linear *layer, const Rows *rows, int64_t count, int64_t first, int64_t last, int64_t begin, int64_t end, int add,
    float *sums, float *room
);

/* A row of bfloat16, 32 at a time `step` bytes apart, becomes int8 in tiles; returns what a unit of it is worth.
 * `evened` as in a linear layer. */
float cenote_quantize(const void *row, int64_t step, int64_t width, const float *evened, void *out);

static inline size_t room_bytes(int64_t count) { return larger(4 * ROWS, whole(count, 2 * ROWS)) * PANEL * sizeof(float); }

#endif
