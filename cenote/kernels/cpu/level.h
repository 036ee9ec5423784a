/* Levels: the instruction sets that this library has kernels for, and the interface of those kernels.
 *
 * A product multiplies tiles of packed rows with panels of packed weights. Both operands are stored as words, a word being the
 * inputs that one lane of an instruction multiplies: [row tile][word][rows][inputs of a word] and [panel][word][columns][inputs of
 * a word]; the weights of AMX have another order within a word (x86_amx.c). Everything between the products works on rows
 * of float32: the residual stream, norms, softmax and activations; a level with tile registers may keep rows of bfloat16 (TileLayers).
 */
#ifndef CENOTE_LEVEL_H
#define CENOTE_LEVEL_H

#include "head_group.h"
#include <stddef.h>
#include <stdint.h>

enum { FLOAT32, FLOAT16, BFLOAT16, INT8, NUM_FORMATS };
enum { IDENTITY, GELU, GELU_TANH, RELU, SILU, QUICK_GELU };
enum { MAX_TILE_ROWS = 32, MAX_TILE_COLUMNS = 48 };
enum { CACHE_LINE = 64 };

/* Rows of float32; `count` of them exist. */
typedef struct {
    const float *start;
    int64_t stride, count, width;
} Rows;

/* Memory that a product fetches into the L2 cache while it multiplies: `step` bytes for every word, of which the first two cache lines are
 * fetched, since that cache fetches lines in pairs, and with AMX all. is_first: this product is the first one to read its weights, so that they are not in the L1 cache. */
typedef struct {
    const uint8_t *start;
    int64_t step;
    int is_first;
} Prefetch;

static const Prefetch NO_PREFETCH = {NULL, 0, 0};

static inline void prefetch_step(Prefetch *ahead) {
    __builtin_prefetch(ahead->start, 0, 2);
    ahead->start += ahead->step;
}

typedef struct Product {
    int64_t rows, columns, word; /* of a tile; inputs per word */
    int64_t element_bytes;
    int64_t part_bytes; /* of a panel, which all row tiles of a block are multiplied with before the rest of it: see multiply_panel */
    /* sums [rows][stride] = a x b over `words` words (+= if `add`), in float32, or in int32 for int8. At most `count` rows are needed. */
    void (*multiply)(const void *a, const void *b, int64_t words, void *sums, int64_t stride, int64_t count, int add, const Prefetch *ahead);
    /* Pack one row tile, or packed_rows rows of it, of `width` inputs, padded with zeros to whole words, after multiplying column i with smooth_scales[i] (unless
     * NULL). Writes to `scales` what the sums of each row have to be multiplied with; if it is NULL, rows are not scaled. */
    void (*pack)(const Rows *rows, const float *smooth_scales, void *out, float *scales);
    /* Pack at most `columns` rows as the columns of a panel, without scaling; missing columns are copies of the last one. NULL if a word has several inputs. */
    void (*pack_columns)(const Rows *rows, void *out);
    /* Convert adjacent values without scaling; NULL if a word has several inputs. */
    void (*convert)(const float *from, int64_t count, void *to);
    int64_t input_offset; /* added to packed int8 rows: sums have this times the sum of the weights too much */
    int64_t block_rows;   /* rows that are multiplied with a panel before the next one; 0: DEFAULT_BLOCK_ROWS */
    int64_t packed_rows;  /* rows of a tile that `pack` can pack without the others; 0: all */
    const struct Product *narrow; /* the same with fewer columns for attention, where a head has few: 24 is not a divisor of 32; NULL: this one */
    /* Pack rows whose absolute values are known to be at most bounds[row], and write their scales unless `scales` is NULL. NULL: rows are not
     * scaled, or need their largest value itself. */
    void (*pack_bounded)(const Rows *rows, const float *bounds, void *out, float *scales);
    float max_input; /* largest absolute value of rows that `pack` has scaled; of products with pack_bounded */
} Product;

enum { NO_NORM, LAYER_NORM, RMS_NORM };

typedef struct {
    const float *weight, *bias; /* NULL: 1 and 0 */
    float eps;
    int32_t kind;
} Norm;

/* What follows a product: out = activation(sums * scales + bias), added to `out` if `add`. */
typedef struct {
    const float *bias, *scales;   /* per column; scales may be NULL */
    const int32_t *offsets;       /* per column, subtracted from sums of int8 products; or NULL */
    const float *row_scales;      /* per row; NULL without scales */
    int32_t is_integer, activation, add;
} Epilogue;

/* Kernels between the products, for the vectors of a level. */
typedef struct {
    void (*finish)(const void *sums, int64_t sums_stride, int64_t rows, int64_t columns, const Epilogue *, float *out, int64_t stride);
    void (*norm)(const Norm *, const float *x, int64_t width, float *out);
    /* scores -> 2^(scale * (scores - maximum)) for the keys from low to high, at most 2^-126 elsewhere; returns the sum */
    float (*softmax)(float *scores, float scale, int64_t low, int64_t high, int64_t padded);
    float (*max_absolute)(const float *row, int64_t width);
    void (*gate)(const float *gate_and_up, int64_t width, int64_t activation, float *out);
    /* rotate the first 2 * half dimensions, in pairs (i, half + i), or (2i, 2i + 1) if interleaved */
    void (*rope)(float *head, int64_t half, const float *cosine, const float *sine, int interleaved);
    /* scores -> softcap * tanh(scale * scores / softcap) + bias; softcap 0: no limit, bias NULL: 0 */
    void (*adjust)(float *scores, int64_t count, float scale, float softcap, const float *bias);
    void (*add_scaled)(float *sum, const float *row, float scale, int64_t width);
    void (*scale)(const float *row, float scale, int64_t width, float *out);
} RowKernels;

/* What a level with tile registers adds. */
typedef struct {
    unsigned (*begin)(void); /* configure the registers of this thread; returns what `end` restores */
    void (*end)(unsigned before);
    /* attention in bfloat16 over rows of float32, without bias and softcap */
    size_t (*attention_bytes)(int64_t length, int64_t head_dim);
    void (*attend)(const HeadGroup *heads, int64_t length, uint8_t *memory);
    const struct TileLayers *layers; /* see encoder.h */
} TileKernels;

typedef struct {
    const char *name;
    int (*is_supported)(void);
    const Product *products[NUM_FORMATS]; /* NULL: no such product */
    const RowKernels *rows;
    const TileKernels *tiles; /* NULL: no tile registers */
} Level;

static inline unsigned begin_tiles(const Level *level) { return level->tiles ? level->tiles->begin() : 0; }
static inline void end_tiles(const Level *level, unsigned before) {
    if (level->tiles) level->tiles->end(before);
}

/* The level with this name if the CPU has it, otherwise NULL. */
const Level *cenote_find_level(const char *name);

static inline int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t divide_up(int64_t count, int64_t unit) { return (count + unit - 1) / unit; }

/* Rows that are packed together. */
static inline int64_t rows_to_pack(const Product *product) { return product->packed_rows ? product->packed_rows : product->rows; }

/* Bytes of a packed row tile or panel per row or column: `width` inputs in whole words. */
static inline int64_t packed_bytes(const Product *product, int64_t width) {
    return divide_up(width, product->word) * product->word * product->element_bytes;
}

#endif
