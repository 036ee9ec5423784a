/* Linear layers: packed rows times packed weights.
 *
 * The sums of a row are added in an order that depends on the layer alone: results are bitwise independent of the batch.
 */
#include "linear.h"
#include "scratch.h"
#include <string.h>

enum { DEFAULT_BLOCK_ROWS = 128, MAX_BLOCK_ROWS = 256 };

/* At most so many row tiles prefetch the next part of the weights. On a Neoverse N1, whose caches fetch ahead of the reads by themselves,
 * it takes longer than it saves. */
#if defined(__aarch64__)
enum { MAX_PREFETCHING_TILES = 0 };
#else
enum { MAX_PREFETCHING_TILES = 4 };
#endif

/* Rows of a block: whole tiles, about the same number in every block. */
static int64_t block_rows(const Product *product, int64_t rows) {
    const int64_t most = (product->block_rows ? product->block_rows : DEFAULT_BLOCK_ROWS) / product->rows, tiles = divide_up(rows, product->rows);
    return divide_up(tiles, divide_up(tiles, most)) * product->rows;
}

size_t cenote_packed_rows_bytes(const Level *level, const PackedLinear *layer, int64_t rows) {
    const Product *product = product_of(level, layer);
    return divide_up(rows, product->rows) * product->rows * packed_bytes(product, layer->inputs);
}

/* Values without a sign are ordered like their bits, and NaN is above all. */
static void raise_to(float *max, float value) {
    uint32_t bits, before = __atomic_load_n((uint32_t *)max, __ATOMIC_RELAXED);
    memcpy(&bits, &value, sizeof bits);
    bits &= 0x7fffffff;
    while (before < bits && !__atomic_compare_exchange_n((uint32_t *)max, &before, bits, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

static void record_rows(InputRecord *record, const Rows *rows) {
    for (int64_t row = 0; row < rows->count; row++) {
        const float *from = rows->start + row * rows->stride;
        for (int64_t c = 0; c < rows->width; c++) raise_to(record->max + c, from[c]);
        if (record->rows) memcpy(record->rows + __atomic_fetch_add(&record->count, 1, __ATOMIC_RELAXED) * rows->width, from, rows->width * sizeof(float));
    }
}

void cenote_pack_rows(const Level *level, const PackedLinear *layer, const Rows *rows, int64_t first, const PackedRows *packed) {
    const Product *product = product_of(level, layer);
    const int64_t count = min_of(rows_to_pack(product), rows->count - first), row_in_tile = first % product->rows;
    const Rows part = {rows->start + first * rows->stride, rows->stride, count, rows->width};
    uint8_t *tile = packed->tiles + (first - row_in_tile) * packed_bytes(product, rows->width);
    if (layer->record) record_rows(layer->record, &part);
    product->pack(&part, layer->smooth_scales, tile + row_in_tile * product->word * product->element_bytes, layer->scales ? packed->scales + first : NULL);
}

/* A block of rows, and sizes that are the same for all panels: divisions take long. The block is multiplied with `part` words of a panel
 * before the rest of it, the last time with last_part words. `step` prefetches a whole part: beyond a shorter last one, the next panel. */
typedef struct {
    int64_t first, rows, tiles;
    int64_t words, part, last_part;
    int64_t row_bytes;                /* of a packed row */
    int64_t column_bytes, tile_bytes; /* of a word: of the columns of a panel, of the rows of a tile */
    int64_t prefetching_tiles, step, last_step;
    int64_t next_row_bytes; /* of results that are packed for the next layer */
    float max_sum; /* largest absolute value of a sum over a row, divided by the scale of the row */
} Block;

static Block make_block(const Product *product, const PackedLinear *layer, int64_t first, int64_t rows, const Results *results) {
    const int64_t word_bytes = product->word * product->element_bytes, column_bytes = product->columns * word_bytes;
    const int64_t unit = word_bytes < CACHE_LINE ? 64 : 1; /* words of which a part has a multiple */
    const int64_t words = divide_up(layer->inputs, product->word), max_part = product->part_bytes / column_bytes / unit * unit;
    const int64_t part = min_of(words, divide_up(divide_up(words, divide_up(words, max_part)), unit) * unit);
    const int64_t last_part = words - (divide_up(words, part) - 1) * part;
    const int64_t tiles = divide_up(rows, product->rows), prefetching_tiles = min_of(tiles, MAX_PREFETCHING_TILES);
    return (Block){
        .first = first, .rows = rows, .tiles = tiles, .words = words, .part = part, .last_part = last_part,
        .row_bytes = words * word_bytes, .column_bytes = column_bytes, .tile_bytes = product->rows * word_bytes, .prefetching_tiles = prefetching_tiles,
        .step = prefetching_tiles ? divide_up(column_bytes, prefetching_tiles) : 0,
        .last_step = prefetching_tiles ? divide_up(part * column_bytes, prefetching_tiles * last_part) : 0,
        .next_row_bytes = results->next ? packed_bytes(product, results->next->inputs) : 0,
        .max_sum = __builtin_sqrtf(layer->inputs) * product->max_input * layer->max_norm, /* by the inequality of Cauchy and Schwarz */
    };
}

/* One panel; the inputs in parts of at most part_bytes bytes of weights. All row tiles are multiplied with a part before the next one, so
 * that it stays in a cache. Weights come from the L3 cache or memory, more slowly than a tile reads them: the first tiles of a part
 * prefetch the next part, each its share, some bytes with every word; many prefetches at once would wait for each other. Behind the last
 * panel they go past the weights: prefetches cannot fault, and nothing there is read. */
static void multiply_panel(const Level *level, const PackedLinear *layer, const PackedRows *packed, const Block *block, int64_t panel, const Results *results) {
    const Product *product = product_of(level, layer);
    const int64_t columns = product->columns, column = panel * columns, used_columns = min_of(columns, layer->outputs - column);
    const uint8_t *tiles_start = packed->tiles + block->first * block->row_bytes;
    const uint8_t *weights = (const uint8_t *)layer->panels + panel * block->words * block->column_bytes;
    float sums[MAX_BLOCK_ROWS * MAX_TILE_COLUMNS] __attribute__((aligned(64)));
    Epilogue epilogue = {
        .bias = layer->bias + column,
        .scales = layer->scales ? layer->scales + column : NULL,
        .offsets = layer->offsets ? layer->offsets + column : NULL,
        .is_integer = layer->format == INT8,
        .activation = (int32_t)layer->activation,
        .add = results->add,
    };
    for (int64_t begin = 0; begin < block->words; begin += block->part) {
        const int is_last = begin + block->part >= block->words;
        const int64_t part = is_last ? block->last_part : block->part, step = is_last ? block->last_step : block->step;
        Prefetch ahead = {weights + part * block->column_bytes, 0, 1};
        for (int64_t tile = 0, row = 0; tile < block->tiles; tile++, row += product->rows, ahead.start += step * part) {
            const int64_t rows = min_of(product->rows, block->rows - row);
            float *tile_sums = block->part < block->words ? sums + row * columns : sums; /* those of a single part stay in the L1 cache */
            ahead.step = tile < block->prefetching_tiles ? step : 0;
            product->multiply(tiles_start + (tile * block->words + begin) * block->tile_bytes, weights, part, tile_sums, columns, rows, begin > 0, &ahead);
            ahead.is_first = 0;
            if (!is_last) continue;
            epilogue.row_scales = layer->scales ? packed->scales + block->first + row : NULL;
            if (results->next) {
                level->rows->finish(tile_sums, columns, rows, used_columns, &epilogue, tile_sums, columns);
                const Rows finished = {tile_sums, columns, rows, used_columns};
                uint8_t *to = results->packed.tiles + (block->first + row) * block->next_row_bytes + column * product->rows * product->element_bytes;
                if (results->next->scales) {
                    float bounds[MAX_TILE_ROWS];
                    for (int64_t r = 0; r < rows; r++) bounds[r] = epilogue.row_scales[r] * block->max_sum + layer->max_bias;
                    product->pack_bounded(&finished, bounds, to, panel == 0 ? results->packed.scales + block->first + row : NULL);
                } else product->pack(&finished, NULL, to, NULL);
            } else
                level->rows->finish(
                    tile_sums, columns, rows, used_columns, &epilogue, results->rows + (block->first + row) * results->stride + column, results->stride
                );
        }
        weights += part * block->column_bytes;
    }
}

void cenote_linear_panels(
    const Level *level, const PackedLinear *layer, const PackedRows *packed, int64_t rows, Share share, const Results *results
) {
    const Product *product = product_of(level, layer);
    const int64_t panels = divide_up(layer->outputs, product->columns);
    const int64_t begin = panels * share.index / share.count, end = panels * (share.index + 1) / share.count;
    const int64_t max_rows = block_rows(product, rows);
    for (int64_t first = 0; first < rows; first += max_rows) {
        const Block block = make_block(product, layer, first, min_of(max_rows, rows - first), results);
        for (int64_t panel = begin; panel < end; panel++) multiply_panel(level, layer, packed, &block, panel, results);
    }
}

/* x [count][inputs] -> out [count][outputs], contiguous. Threads split the rows, or the outputs if there are few rows. Returns 0, or 1
 * if no scratch memory could be allocated. */
int cenote_packed_linear(const Level *level, const PackedLinear *layer, const float *x, int64_t count, float *out, int64_t threads) {
    if (count == 0) return 0;
    const int64_t block = block_rows(product_of(level, layer), divide_up(count, threads));
    const int64_t blocks = divide_up(count, block), pieces = blocks >= threads ? 1 : divide_up(threads, blocks);
    int64_t failed = 0;
#pragma omp parallel num_threads(threads) if (blocks * pieces > 1)
    {
        const size_t bytes = cenote_packed_rows_bytes(level, layer, block);
        uint8_t *memory = cenote_scratch(THREAD_SCRATCH, bytes + block * sizeof(float));
        if (memory == NULL) __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
        const unsigned before = begin_tiles(level);
#pragma omp for schedule(dynamic)
        for (int64_t unit = 0; unit < blocks * pieces; unit++) {
            if (memory == NULL) continue;
            const int64_t first = unit / pieces * block, rows = min_of(block, count - first);
            const PackedRows packed = {memory, (float *)(memory + bytes)};
            const Rows from = {x + first * layer->inputs, layer->inputs, rows, layer->inputs};
            for (int64_t row = 0; row < rows; row += rows_to_pack(product_of(level, layer))) cenote_pack_rows(level, layer, &from, row, &packed);
            const Share share = {unit % pieces, pieces};
            const Results results = {.rows = out + first * layer->outputs, .stride = layer->outputs};
            cenote_linear_panels(level, layer, &packed, rows, share, &results);
        }
        end_tiles(level, before);
    }
    return failed;
}

/* Columns and units of a tile of AMX: a unit is the bytes that stay together in a panel. */
enum { TILE_SIDE = 16 };

/* One panel of `columns` rows of a weight, of which `count` exist; what does not exist is zero. Each unit has all columns, or each tile of
 * TILE_SIDE units and columns. TILE_SIDE units of all columns stay in the L1 cache until they are written. */
static inline __attribute__((always_inline)) void pack_panel(
    const uint8_t *rows, int64_t row_bytes, int64_t count, int64_t columns, int64_t units, int is_tiled, const int64_t unit_bytes, uint8_t *panel
) {
    const int64_t whole = row_bytes / unit_bytes, rest = row_bytes % unit_bytes, step = is_tiled ? TILE_SIDE : columns;
    if (count < columns || whole < units) memset(panel, 0, units * columns * unit_bytes);
    for (int64_t first = 0; first < units; first += TILE_SIDE)
        for (int64_t column = 0; column < min_of(count, columns); column++) {
            const uint8_t *from = rows + column * row_bytes;
            const int64_t in_block = is_tiled ? column / TILE_SIDE * TILE_SIDE * TILE_SIDE + column % TILE_SIDE : column;
            uint8_t *to = panel + (first * columns + in_block) * unit_bytes;
            for (int64_t unit = first; unit < min_of(first + TILE_SIDE, whole); unit++, to += step * unit_bytes)
                memcpy(to, from + unit * unit_bytes, unit_bytes);
            if (rest && whole >= first && whole < first + TILE_SIDE) memcpy(to, from + whole * unit_bytes, rest);
        }
}

/* Reorder a weight [outputs][row_bytes] to panels of `units` units of 2, 4 or 8 bytes. */
void cenote_pack_panels(
    const uint8_t *weight, int64_t outputs, int64_t row_bytes, int64_t columns, int64_t units, int64_t is_tiled, int64_t unit_bytes, uint8_t *out,
    int64_t threads
) {
    const int64_t panels = divide_up(outputs, columns);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t panel = 0; panel < panels; panel++) {
        const uint8_t *rows = weight + panel * columns * row_bytes;
        uint8_t *to = out + panel * columns * units * unit_bytes;
        const int64_t count = outputs - panel * columns;
        if (unit_bytes == 2) pack_panel(rows, row_bytes, count, columns, units, 0, 2, to);
        else if (unit_bytes == 8) pack_panel(rows, row_bytes, count, columns, units, 0, 8, to);
        else pack_panel(rows, row_bytes, count, columns, units, (int)is_tiled, 4, to);
    }
}
