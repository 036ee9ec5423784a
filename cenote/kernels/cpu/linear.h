/* Linear layers with packed weights. */
#ifndef CENOTE_LINEAR_H
#define CENOTE_LINEAR_H

#include "level.h"

/* What the inputs of a layer were in a run for calibration. The threads of an encoder share it. */
typedef struct {
    float *max;    /* the largest absolute value of each input; NaN if one was NaN */
    float *rows;   /* the inputs of all tokens, in any order; NULL: they are not kept */
    int64_t count; /* of the rows */
} InputRecord;

typedef struct {
    const void *panels;         /* packed weights */
    const float *bias, *scales; /* per output, padded to whole panels; scales of float32 weights are NULL */
    const int32_t *offsets;     /* see Epilogue; or NULL */
    const float *smooth_scales; /* SmoothQuant scales of the inputs; or NULL */
    int64_t inputs, outputs, activation, format;
    float max_norm; /* largest L2 norm of the weights of an output */
    float max_bias; /* the most that bias and activation add to the absolute value of a sum; with max_norm of layers with scales */
    InputRecord *record; /* NULL: inputs are not recorded */
} PackedLinear;

/* Packed rows: row tiles, each with the scales of its rows. */
typedef struct {
    uint8_t *tiles;
    float *scales;
} PackedRows;

/* Where the results of a layer go: to rows of float32, to which they are added if `add`; or packed for the next layer, which has the same
 * product (can_pack_results). */
typedef struct {
    float *rows;
    int64_t stride;
    int add;
    const PackedLinear *next; /* NULL: rows of float32 */
    PackedRows packed;
} Results;

/* A part of the work for one of several threads. */
typedef struct {
    int64_t index, count;
} Share;

static inline const Product *product_of(const Level *level, const PackedLinear *layer) { return level->products[layer->format]; }
size_t cenote_packed_rows_bytes(const Level *level, const PackedLinear *layer, int64_t rows);

/* Pack `rows_to_pack` rows from `first` on, which is a multiple of it, for the layer. */
void cenote_pack_rows(const Level *level, const PackedLinear *layer, const Rows *rows, int64_t first, const PackedRows *packed);

/* Whether the results of a layer can be packed for the next one without rows of float32 in between. */
static inline int can_pack_results(const Level *level, const PackedLinear *layer, const PackedLinear *next) {
    const Product *product = product_of(level, layer);
    return product == product_of(level, next) && layer->outputs == next->inputs && (next->scales == NULL || product->pack_bounded) &&
           next->record == NULL;
}

/* results = activation(rows x weights + bias) for this thread's share of the panels. */
void cenote_linear_panels(
    const Level *level, const PackedLinear *layer, const PackedRows *packed, int64_t rows, Share share, const Results *results
);

#endif
