/* The layers of a post-norm encoder (BERT, RoBERTa) for the level `amx`. Between the layers rows are bfloat16 in the layout of tiles, which a
 * product loads as they are; sums of a product become rows in the norm that follows it, and an MLP is computed in groups of its intermediate
 * columns, so that those of a block of rows stay in the L2 cache.
 */
#include "cpu/compiler.h"
#if KNOWS_AMX
#include "cpu/encoder.h"
#include "native_linear.h"
#include "native_norm.h"

enum { MLP_GROUP = 512 }; /* maximum number of intermediate MLP columns computed at once */

/* Buffers of one chunk: [rows][...] each. */
typedef struct {
    bf16 *x, *qkv, *attn_out; /* x in tile layout */
    int8_t *x8;
    float *x_scales;
} Chunk;

/* Buffers for a block of rows, used between attention and the end of a layer. */
typedef struct {
    float *sums, *scratch, *scales, *row_buffer; /* row_buffer: one row */
    bf16 *intermediate;
    int8_t *int8_rows; /* attention output or a group of intermediate columns as int8 */
} Block;

static int64_t intermediate_width(const LevelEncoder *e) { return e->layers->up.outputs; }

static int64_t mlp_group_width(const LevelEncoder *e) {
    const int64_t width = intermediate_width(e), groups = divide_up(width, MLP_GROUP);
    return round_up(divide_up(width, groups), 64);
}

/* The float sums of a block leave half of the L2 cache to the weights. */
static int64_t max_block_rows(const LevelEncoder *e) { return max_i64(64, min_i64(384, 147456 / e->hidden / 32 * 32)); }

static void quantize_rows(
    const float *smooth_scales, const RowLayout *from, int64_t first, int64_t last, int64_t width, int8_t *to, float *scales
) {
    for (int64_t row = first; row < last; row++) {
        const uint8_t *row_start = (const uint8_t *)from->start + row / TILE_ROWS * from->block + row % TILE_ROWS * from->row;
        scales[row] = cenote_quantize(row_start, from->step, width, smooth_scales, tile_row(to, row, width));
    }
}

/* x = norm(x + sums + bias), and x8 = x quantized for the layer `reader` if x8 is not NULL. */
static void add_norm(
    const PackedLinear *layer, const Norm *norm, const PackedLinear *reader, int64_t first, int64_t last, const Block *block,
    const float *sums, bf16 *x, int8_t *x8, float *x_scales
) {
    const int64_t width = layer->outputs;
    const __m512 one = _mm512_set1_ps(1.0f);
    for (int64_t row = first; row < last; row++) {
        const float *sum = sums + row / (2 * TILE_ROWS) * 2 * TILE_ROWS * width + row % (2 * TILE_ROWS) * PANEL;
        uint8_t *row_start = tile_row(x, row, width * sizeof(bf16));
        __m512 sum_low = _mm512_setzero_ps(), squares_low = sum_low, sum_high = sum_low, squares_high = sum_low;
        for (int64_t c = 0; c < width; c += PANEL, sum += 2 * TILE_ROWS * PANEL) {
            const __m512i both = _mm512_load_si512(row_start + c / 32 * TILE_BYTES);
            __m512 low = _mm512_add_ps(bf16_to_f32(_mm512_castsi512_si256(both)), _mm512_loadu_ps(layer->bias + c));
            __m512 high = _mm512_add_ps(bf16_to_f32(_mm512_extracti64x4_epi64(both, 1)), _mm512_loadu_ps(layer->bias + c + 16));
            low = _mm512_fmadd_ps(_mm512_load_ps(sum), layer->scales ? _mm512_loadu_ps(layer->scales + c) : one, low);
            high = _mm512_fmadd_ps(_mm512_load_ps(sum + 16), layer->scales ? _mm512_loadu_ps(layer->scales + c + 16) : one, high);
            sum_low = _mm512_add_ps(sum_low, low);
            sum_high = _mm512_add_ps(sum_high, high);
            squares_low = _mm512_fmadd_ps(low, low, squares_low);
            squares_high = _mm512_fmadd_ps(high, high, squares_high);
            _mm512_store_ps(block->row_buffer + c, low);
            _mm512_store_ps(block->row_buffer + c + 16, high);
        }
        normalize(norm, block->row_buffer, width, _mm512_add_ps(sum_low, sum_high), _mm512_add_ps(squares_low, squares_high),
            row_start, TILE_BYTES);
        if (x8) x_scales[row] = cenote_quantize(row_start, TILE_BYTES, width, reader->smooth_scales, tile_row(x8, row, width));
    }
}

static RowLayout bf16_layout(const bf16 *rows, int64_t width) { return tile_layout(rows, width * sizeof(bf16)); }

static RowLayout int8_layout(const int8_t *rows, int64_t width, const float *scales) {
    RowLayout layout = tile_layout(rows, width);
    layout.scales = scales;
    return layout;
}

/* Rows as the layer reads them; int8 rows are quantized into the buffers of the block. */
static RowLayout rows_for(const PackedLinear *layer, RowLayout rows, int64_t count, int64_t width, int64_t first_input, const Block *block) {
    if (!is_int8(layer)) return rows;
    const float *smooth_scales = layer->smooth_scales ? layer->smooth_scales + first_input : NULL;
    quantize_rows(smooth_scales, &rows, 0, count, width, block->int8_rows, block->scales);
    return int8_layout(block->int8_rows, width, block->scales);
}

/* Token states in the dtype that the linear layers read. */
static RowLayout state_layout(const LevelEncoder *e, const Chunk *chunk, int64_t first) {
    if (!is_int8(&e->layers->qkv)) return bf16_layout(chunk->x + first * e->hidden, e->hidden);
    return int8_layout(chunk->x8 + first * e->hidden, e->hidden, chunk->x_scales + first);
}

/* The panels of a thread. */
static int64_t first_panel(int64_t panels, const Share *share) { return panels * share->index / share->count; }
static int64_t last_panel(int64_t panels, const Share *share) { return panels * (share->index + 1) / share->count; }

/* intermediate = activation(x up) for the columns from `begin` to `end`; this thread computes its share of them. */
static void mlp_up(
    const LevelLayer *layer, const RowLayout *x, int64_t count, int64_t begin, int64_t end, const Share *share, bf16 *intermediate, float *scratch
) {
    const int64_t panels = (end - begin) / PANEL, first = first_panel(panels, share), last = last_panel(panels, share);
    RowLayout out = tile_layout(intermediate, (end - begin) * sizeof(bf16));
    out.start = (const uint8_t *)out.start + first * TILE_BYTES;
    cenote_linear_rows(&layer->up, x, count, begin / PANEL + first, begin / PANEL + last, &out, scratch);
}

/* sums = intermediate x down for this thread's share of the panels (+= if begin > 0): the part of the columns from `begin` to `end`. */
static void mlp_down(
    const LevelLayer *layer, int64_t count, int64_t begin, int64_t end, const Share *share, const bf16 *intermediate, const Block *block, float *sums
) {
    const int64_t panels = num_panels(&layer->down), step = is_int8(&layer->down) ? 64 : 32;
    const RowLayout rows = rows_for(&layer->down, bf16_layout(intermediate, end - begin), count, end - begin, begin, block);
    cenote_linear_partial_sums(&layer->down, &rows, count, first_panel(panels, share), last_panel(panels, share), begin / step, end / step,
        begin > 0, sums, block->scratch);
}

/* sums = attn_out x out for this thread's share of the panels; to quantize all rows in each thread is cheaper than to synchronize. */
static void project(
    const LevelEncoder *e, const LevelLayer *layer, const bf16 *attn_out, int64_t count, const Share *share, const Block *block, float *sums
) {
    const int64_t width = attention_width(e), panels = num_panels(&layer->out);
    const RowLayout rows = rows_for(&layer->out, row_major(attn_out, width * sizeof(bf16)), count, width, 0, block);
    cenote_linear_partial_sums(&layer->out, &rows, count, first_panel(panels, share), last_panel(panels, share), 0, num_steps(&layer->out), 0,
        sums, block->scratch);
}

static const PackedLinear *next_reader(const LevelEncoder *e, const LevelLayer *layer) {
    return &(layer + 1 < e->layers + e->num_layers ? layer + 1 : layer)->qkv; /* unused after the last layer */
}

/* The part of a layer after attention, for `count` rows from `first` on, by one thread. */
static void after_attention(const LevelEncoder *e, const LevelLayer *layer, const Chunk *chunk, const Block *block, int64_t first, int64_t count) {
    const int64_t hidden = e->hidden, group = mlp_group_width(e), width = intermediate_width(e);
    const Share all = {0, 1};
    bf16 *x = chunk->x + first * hidden;
    int8_t *x8 = is_int8(&layer->qkv) ? chunk->x8 + first * hidden : NULL;
    project(e, layer, chunk->attn_out + first * attention_width(e), count, &all, block, block->sums);
    add_norm(&layer->out, &layer->mixer_norm, &layer->up, 0, count, block, block->sums, x, x8, chunk->x_scales + first);
    const RowLayout x_rows = state_layout(e, chunk, first);
    for (int64_t begin = 0; begin < width; begin += group) {
        const int64_t end = min_i64(begin + group, width);
        mlp_up(layer, &x_rows, count, begin, end, &all, block->intermediate, block->scratch);
        mlp_down(layer, count, begin, end, &all, block->intermediate, block, block->sums);
    }
    add_norm(&layer->down, &layer->mlp_norm, next_reader(e, layer), 0, count, block, block->sums, x, x8, chunk->x_scales + first);
}

/* The same for few rows: threads split the outputs of every linear layer and share buffers. */
static void after_attention_shared(
    const LevelEncoder *e, const LevelLayer *layer, const Chunk *chunk, const Block *block, const Block *shared, int64_t count, Team *team
) {
    const int64_t group = mlp_group_width(e), width = intermediate_width(e), padded = round_up(count, 2 * TILE_ROWS);
    const Share *share = &team->share;
    const int64_t from = first_panel(count, share), until = last_panel(count, share); /* rows */
    int8_t *x8 = is_int8(&layer->qkv) ? chunk->x8 : NULL;
    project(e, layer, chunk->attn_out, count, share, block, shared->sums);
    wait_for_team(team);
    add_norm(&layer->out, &layer->mixer_norm, &layer->up, from, until, block, shared->sums, chunk->x, x8, chunk->x_scales);
    wait_for_team(team);
    const RowLayout x_rows = state_layout(e, chunk, 0);
    for (int64_t begin = 0; begin < width; begin += group)
        mlp_up(layer, &x_rows, count, begin, min_i64(begin + group, width), share, shared->intermediate + begin * padded, block->scratch);
    wait_for_team(team);
    for (int64_t begin = 0; begin < width; begin += group)
        mlp_down(layer, count, begin, min_i64(begin + group, width), share, shared->intermediate + begin * padded, block, shared->sums);
    wait_for_team(team);
    add_norm(&layer->down, &layer->mlp_norm, next_reader(e, layer), from, until, block, shared->sums, chunk->x, x8, chunk->x_scales);
    wait_for_team(team);
}

/* Sum of the token, type and position embeddings, normalized. */
static void embed_token(const LevelEncoder *e, const LevelInput *batch, int64_t token, float *sum, uint8_t *row_start) {
    const LevelEmbedding *tables = &e->embedding;
    const int64_t hidden = e->hidden;
    const bf16 *word = (const bf16 *)tables->tokens + batch->token_ids[token] * hidden;
    const bf16 *type = tables->types ? (const bf16 *)tables->types + (batch->types ? batch->types[token] : 0) * hidden : NULL;
    const bf16 *position = tables->positions ? (const bf16 *)tables->positions + (batch->positions[token] + tables->position_offset) * hidden : NULL;
    __m512 total = _mm512_setzero_ps(), squares = total;
    for (int64_t c = 0; c < hidden; c += 16) {
        __m512 value = bf16_to_f32(_mm256_loadu_si256((const void *)(word + c)));
        if (type) value = _mm512_add_ps(value, bf16_to_f32(_mm256_loadu_si256((const void *)(type + c))));
        if (position) value = _mm512_add_ps(value, bf16_to_f32(_mm256_loadu_si256((const void *)(position + c))));
        total = _mm512_add_ps(total, value);
        squares = _mm512_fmadd_ps(value, value, squares);
        _mm512_store_ps(sum + c, value);
    }
    normalize(&tables->norm, sum, hidden, total, squares, row_start, TILE_BYTES);
}

static void load_rows(
    const LevelEncoder *e, const LevelInput *batch, const Chunk *chunk, const Block *block, int64_t start, int64_t first, int64_t last
) {
    const int64_t hidden = e->hidden;
    for (int64_t row = first; row < last; row++) {
        uint8_t *row_start = tile_row(chunk->x, row, hidden * sizeof(bf16));
        if (batch->rows == NULL) embed_token(e, batch, start + row, block->row_buffer, row_start);
        else
            for (int64_t c = 0; c < hidden; c += 32)
                _mm512_store_si512(row_start + c / 32 * TILE_BYTES, _mm512_loadu_si512((const bf16 *)batch->rows + (start + row) * hidden + c));
    }
    const RowLayout rows = bf16_layout(chunk->x, hidden);
    if (is_int8(&e->layers->qkv)) quantize_rows(e->layers->qkv.smooth_scales, &rows, first, last, hidden, chunk->x8, chunk->x_scales);
}

static void store_rows(const LevelEncoder *e, const LevelInput *batch, const Chunk *chunk, int64_t start, int64_t first, int64_t last) {
    const int64_t hidden = e->hidden;
    for (int64_t row = first; row < last; row++) {
        const uint8_t *row_start = tile_row(chunk->x, row, hidden * sizeof(bf16));
        for (int64_t c = 0; c < hidden; c += 32)
            _mm512_storeu_si512((bf16 *)batch->out + (start + row) * hidden + c, _mm512_load_si512(row_start + c / 32 * TILE_BYTES));
    }
}

static Chunk take_chunk(const LevelEncoder *e, int64_t rows, uint8_t **memory) {
    const int64_t padded = round_up(rows, 2 * TILE_ROWS);
    Chunk chunk;
    chunk.x = arena_take(memory, padded * e->hidden * sizeof(bf16));
    chunk.qkv = arena_take(memory, padded * e->layers->qkv.outputs * sizeof(bf16));
    chunk.attn_out = arena_take(memory, padded * attention_width(e) * sizeof(bf16));
    chunk.x8 = arena_take(memory, is_int8(&e->layers->qkv) ? padded * e->hidden : 0);
    chunk.x_scales = arena_take(memory, padded * sizeof(float));
    return chunk;
}

static Block take_block(const LevelEncoder *e, int64_t rows, int64_t intermediate, uint8_t **memory) {
    const int64_t padded = round_up(rows, 2 * TILE_ROWS);
    Block block;
    block.sums = arena_take(memory, padded * e->hidden * sizeof(float));
    block.scratch = arena_take(memory, linear_scratch_bytes(padded));
    block.intermediate = arena_take(memory, padded * intermediate * sizeof(bf16));
    block.int8_rows = arena_take(memory, is_int8(&e->layers->qkv) ? padded * max_i64(intermediate, attention_width(e)) : 0);
    block.scales = arena_take(memory, padded * sizeof(float));
    block.row_buffer = arena_take(memory, e->hidden * sizeof(float));
    return block;
}

static Block take_thread_block(const LevelEncoder *e, int64_t rows, uint8_t **memory) {
    return take_block(e, min_i64(rows, max_block_rows(e)), mlp_group_width(e), memory);
}

/* The block that `threads` share if a chunk has few rows. */
static Block take_shared_block(const LevelEncoder *e, int64_t rows, int64_t threads, uint8_t **memory) {
    return take_block(e, min_i64(rows, 2 * TILE_ROWS * threads), intermediate_width(e), memory);
}

static size_t chunk_bytes(const LevelEncoder *e, int64_t rows, int64_t threads) {
    uint8_t *size = NULL;
    take_chunk(e, rows, &size);
    if (threads > 1) take_shared_block(e, rows, threads, &size);
    return (size_t)size;
}

static size_t thread_bytes(const LevelEncoder *e, int64_t rows) {
    uint8_t *size = NULL;
    take_thread_block(e, rows, &size);
    return (size_t)size;
}

static void encode_chunk(
    const LevelEncoder *e, const LevelInput *batch, const int64_t *offsets, int64_t members, int64_t max_rows, uint8_t *chunk_memory,
    uint8_t *memory, Team *team
) {
    const Share *share = &team->share;
    const Chunk chunk = take_chunk(e, max_rows, &chunk_memory);
    const Block block = take_thread_block(e, max_rows, &memory), shared = share->count > 1 ? take_shared_block(e, max_rows, share->count, &chunk_memory) : block;
    const int64_t rows = offsets[members] - offsets[0], panels = num_panels(&e->layers->qkv);
    const int64_t block_rows = min_i64(max_block_rows(e), round_up(divide_up(rows, share->count), 2 * TILE_ROWS));
    const int64_t row_bytes = e->layers->qkv.outputs * sizeof(bf16), stride = share->count * block_rows, mine = share->index * block_rows;
    const int by_columns = share->count > 1 && rows < 2 * TILE_ROWS * share->count;
    for (int64_t first = mine; first < rows; first += stride)
        load_rows(e, batch, &chunk, &block, offsets[0], first, min_i64(rows, first + block_rows));
    if (by_columns) wait_for_team(team);
    for (const LevelLayer *layer = e->layers; layer < e->layers + e->num_layers; layer++) {
        if (by_columns) {
            const int64_t from = first_panel(panels, share);
            const RowLayout x = state_layout(e, &chunk, 0);
            const RowLayout out = row_major(chunk.qkv + from * PANEL, row_bytes);
            cenote_linear_rows(&layer->qkv, &x, rows, from, last_panel(panels, share), &out, block.scratch);
        } else
            for (int64_t first = mine; first < rows; first += stride) {
                const RowLayout x = state_layout(e, &chunk, first);
                const RowLayout out = row_major((uint8_t *)chunk.qkv + first * row_bytes, row_bytes);
                cenote_linear_rows(&layer->qkv, &x, min_i64(block_rows, rows - first), 0, panels, &out, block.scratch);
            }
        wait_for_team(team);
        cenote_attend_chunk(e, layer, batch, chunk.qkv, chunk.attn_out, 1, offsets, members, memory, team);
        if (by_columns) after_attention_shared(e, layer, &chunk, &block, &shared, rows, team);
        else
            for (int64_t first = mine; first < rows; first += stride)
                after_attention(e, layer, &chunk, &block, first, min_i64(block_rows, rows - first));
    }
    for (int64_t first = mine; first < rows; first += stride)
        store_rows(e, batch, &chunk, offsets[0], first, min_i64(rows, first + block_rows));
    wait_for_team(team);
}

const struct TileLayers cenote_amx_layers = {max_block_rows, chunk_bytes, thread_bytes, encode_chunk};
#endif
