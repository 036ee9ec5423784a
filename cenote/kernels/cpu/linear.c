/* Linear layers: packed rows times packed weights.
 *
 * The sums of a row are added in an order that depends on the layer alone: results are bitwise independent of the batch.
 */
#include "linear.h"
#include "scratch.h"

enum { MAX_BLOCK_ROWS = 128 };

/* At most so many row tiles prefetch the next part of the weights. On a Neoverse N1, whose caches fetch ahead of the reads by themselves,
 * it takes longer than it saves. */
#if defined(__aarch64__)
enum { MAX_PREFETCHING_TILES = 0 };
#else
enum { MAX_PREFETCHING_TILES = 4 };
#endif

/* Rows of a block: whole tiles, at most MAX_BLOCK_ROWS, about the same number in every block. */
static int64_t block_rows(const Product *product, int64_t rows) {
    const int64_t most = MAX_BLOCK_ROWS / product->rows, tiles = divide_up(rows, product->rows);
    return divide_up(tiles, divide_up(tiles, most)) * product->rows;
}

size_t cenote_packed_rows_bytes(const Level *level, const PackedLinear *layer, int64_t rows) {
    const Product *product = product_of(level, layer);
    return divide_up(rows, product->rows) * product->rows * packed_bytes(product, layer->inputs);
}

void cenote_pack_tile(const Level *level, const PackedLinear *layer, const Rows *rows, int64_t tile, const PackedRows *packed) {
    const Product *product = product_of(level, layer);
    const int64_t first = tile * product->rows;
    const Rows part = {rows->start + first * rows->stride, rows->stride, min_of(product->rows, rows->count - first), rows->width};
    uint8_t *out = packed->tiles + first * packed_bytes(product, rows->width);
    product->pack(&part, layer->smooth_scales, out, layer->scales ? packed->scales + first : NULL);
}

/* Where a tile of the results of a panel is packed for the next layer. */
static uint8_t *packed_results(const Product *product, const Results *results, int64_t row, int64_t column) {
    return results->tiles + row * packed_bytes(product, results->next->inputs) + column / product->word * product->rows * product->word * product->element_bytes;
}

/* Fetch the cache lines that a tile of results goes to, while it is being multiplied: they are in the L3 cache or in memory. */
static void prefetch_results(const Product *product, const Results *results, int64_t row, int64_t column, int64_t rows) {
    if (results->next) {
        const uint8_t *to = packed_results(product, results, row, column);
        for (int64_t line = 0; line < product->rows * product->columns * product->element_bytes; line += CACHE_LINE) __builtin_prefetch(to + line, 1, 3);
    } else
        for (int64_t r = row; r < row + rows; r++) {
            const float *to = results->rows + r * results->stride + column;
            for (int64_t c = 0; c < product->columns; c += CACHE_LINE / (int64_t)sizeof(float)) __builtin_prefetch(to + c, 1, 3);
        }
}

/* One panel for at most MAX_BLOCK_ROWS rows; the inputs in parts of at most part_bytes bytes of weights. All row tiles are multiplied with a
 * part before the next one, so that it stays in a cache. Weights come from the L3 cache or memory, more slowly than a tile reads them: the
 * first tiles of a part prefetch the next part, each its share, some bytes with every word; many prefetches at once would wait for each
 * other. Behind the last panel they go past the weights: prefetches cannot fault, and nothing there is read. */
static void multiply_panel(
    const Level *level, const PackedLinear *layer, const PackedRows *packed, int64_t first, int64_t count, int64_t panel, const Results *results
) {
    const Product *product = product_of(level, layer);
    const int64_t words = divide_up(layer->inputs, product->word), columns = product->columns, word_bytes = product->word * product->element_bytes;
    const int64_t max_words = product->part_bytes / (columns * word_bytes) / 64 * 64, parts = divide_up(words, max_words);
    const int64_t tiles = divide_up(count, product->rows), part = divide_up(divide_up(words, parts), 64) * 64, tile_bytes = words * product->rows * word_bytes;
    const int64_t column_bytes = columns * word_bytes; /* of a word */
    const int64_t column = panel * columns, used_columns = min_of(columns, layer->outputs - column);
    const uint8_t *tiles_start = packed->tiles + first / product->rows * tile_bytes;
    const uint8_t *weights = (const uint8_t *)layer->panels + panel * words * column_bytes;
    const int64_t prefetching_tiles = min_of(tiles, MAX_PREFETCHING_TILES);
    float sums[MAX_BLOCK_ROWS * MAX_TILE_COLUMNS] __attribute__((aligned(64)));
    Epilogue epilogue = {
        .bias = layer->bias + column,
        .scales = layer->scales ? layer->scales + column : NULL,
        .offsets = layer->offsets ? layer->offsets + column : NULL,
        .is_integer = layer->format == INT8,
        .activation = (int32_t)layer->activation,
        .add = results->add,
    };
    for (int64_t begin = 0; begin < words; begin += part) {
        const int64_t part_words = min_of(part, words - begin);
        const int64_t next_words = min_of(part, begin + part_words < words ? words - begin - part_words : words);
        const int64_t step = prefetching_tiles ? divide_up(next_words * column_bytes, prefetching_tiles * part_words) : 0;
        const int is_last = begin + part >= words;
        Prefetch ahead = {weights + part_words * column_bytes, 0, 1};
        for (int64_t tile = 0, row = 0; tile < tiles; tile++, row += product->rows, ahead.start += step * part_words) {
            const int64_t rows = min_of(product->rows, count - row);
            float *tile_sums = part < words ? sums + row * columns : sums; /* those of a single part stay in the L1 cache */
            ahead.step = tile < prefetching_tiles ? step : 0;
            if (is_last && prefetching_tiles) prefetch_results(product, results, first + row, column, rows);
            product->multiply(tiles_start + tile * tile_bytes + begin * product->rows * word_bytes, weights, part_words, tile_sums, columns, rows,
                begin > 0, ahead);
            ahead.is_first = 0;
            if (!is_last) continue;
            epilogue.row_scales = layer->scales ? packed->scales + first + row : NULL;
            if (results->next) {
                level->rows->finish(tile_sums, columns, rows, used_columns, &epilogue, tile_sums, columns);
                const Rows finished = {tile_sums, columns, rows, used_columns};
                product->pack(&finished, NULL, packed_results(product, results, first + row, column), NULL);
            } else
                level->rows->finish(
                    tile_sums, columns, rows, used_columns, &epilogue, results->rows + (first + row) * results->stride + column, results->stride
                );
        }
        weights += part_words * column_bytes;
    }
}

void cenote_linear_panels(
    const Level *level, const PackedLinear *layer, const PackedRows *packed, int64_t rows, Share share, const Results *results
) {
    const int64_t panels = divide_up(layer->outputs, product_of(level, layer)->columns);
    const int64_t begin = panels * share.index / share.count, end = panels * (share.index + 1) / share.count;
    const int64_t block = block_rows(product_of(level, layer), rows);
    for (int64_t first = 0; first < rows; first += block)
        for (int64_t panel = begin; panel < end; panel++)
            multiply_panel(level, layer, packed, first, min_of(block, rows - first), panel, results);
}

/* x [count][inputs] -> out [count][outputs], contiguous. Threads split the rows, or the outputs if there are few rows. Returns 0, or 1
 * if no scratch memory could be allocated. */
int cenote_packed_linear(const Level *level, const PackedLinear *layer, const float *x, int64_t count, float *out, int64_t threads) {
    if (count == 0) return 0;
    const int64_t tile = product_of(level, layer)->rows;
    const int64_t block = block_rows(product_of(level, layer), divide_up(count, threads));
    const int64_t blocks = divide_up(count, block), pieces = blocks >= threads ? 1 : divide_up(threads, blocks);
    int64_t failed = 0;
#pragma omp parallel num_threads(threads) if (blocks * pieces > 1)
    {
        const size_t bytes = cenote_packed_rows_bytes(level, layer, block);
        uint8_t *memory = cenote_scratch(THREAD_SCRATCH, bytes + block * sizeof(float));
        if (memory == NULL) __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
#pragma omp for schedule(dynamic)
        for (int64_t unit = 0; unit < blocks * pieces; unit++) {
            if (memory == NULL) continue;
            const int64_t first = unit / pieces * block, rows = min_of(block, count - first);
            const PackedRows packed = {memory, (float *)(memory + bytes)};
            const Rows from = {x + first * layer->inputs, layer->inputs, rows, layer->inputs};
            for (int64_t i = 0; i < divide_up(rows, tile); i++) cenote_pack_tile(level, layer, &from, i, &packed);
            const Share share = {unit % pieces, pieces};
            const Results results = {.rows = out + first * layer->outputs, .stride = layer->outputs};
            cenote_linear_panels(level, layer, &packed, rows, share, &results);
        }
    }
    return failed;
}
