/* All layers of a post-norm encoder (BERT, RoBERTa) over packed sequences in one call.
 *
 * Each thread takes a chunk of adjacent sequences and runs all layers on it: the rows stay in its caches, and threads do not
 * synchronize. If there are fewer chunks than threads, all threads work on one chunk at a time.
 */
#include "cpu/compiler.h"
#if KNOWS_AMX
#include "native_attention.h"
#include "native_linear.h"
#include "native_norm.h"
#include <sched.h>

int omp_get_thread_num(void); /* declared here: omp.h is not installed with every compiler */
int omp_get_num_threads(void);

enum { MLP_GROUP = 512 }; /* maximum number of intermediate MLP columns computed at once */

typedef struct {
    Linear qkv, out, up, down;
    Norm mixer_norm, mlp_norm;
} Layer;

/* Embedding tables in bfloat16, whose rows are summed and normalized; positions and types may be NULL. */
typedef struct {
    const bf16 *tokens, *positions, *types;
    int64_t num_tokens, num_positions, num_types, position_offset;
    Norm norm;
} Embedding;

typedef struct {
    const Layer *layers;
    int64_t num_layers, hidden, intermediate, heads, kv_heads, head_dim, window;
    float scale;
    int32_t causal;
    Embedding embedding;
} Encoder;

typedef struct {
    const bf16 *rows; /* input embeddings; NULL: they are looked up from the ids below */
    const int64_t *token_ids, *positions, *types;
    bf16 *out;
} EncoderInput;

/* The threads that work on one chunk. */
typedef struct {
    int64_t index, count, num_expected;
    int64_t *arrived;
} Team;

static void team_barrier(Team *team) {
    if (team->count == 1) return;
    team->num_expected += team->count;
    __atomic_add_fetch(team->arrived, 1, __ATOMIC_ACQ_REL);
    for (int64_t tries = 0; __atomic_load_n(team->arrived, __ATOMIC_ACQUIRE) < team->num_expected; tries++)
        if (tries < 4096) _mm_pause();
        else sched_yield();
}

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

static int64_t mlp_group_width(const Encoder *e) {
    const int64_t groups = (e->intermediate + MLP_GROUP - 1) / MLP_GROUP;
    return round_up((e->intermediate + groups - 1) / groups, 64);
}

/* Rows of a block: their float sums leave half of the L2 cache to the weights. */
static int64_t max_block_rows(const Encoder *e) { return max_i64(64, min_i64(384, 147456 / e->hidden / 32 * 32)); }
static int64_t attention_width(const Encoder *e) { return e->heads * e->head_dim; }

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
    const Linear *layer, const Norm *norm, const Linear *reader, int64_t first, int64_t last, const Block *block,
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

/* Token states in the dtype that the linear layers read. */
static RowLayout state_layout(const Encoder *e, const Chunk *chunk, int64_t first) {
    if (!is_int8(&e->layers->qkv)) return bf16_layout(chunk->x + first * e->hidden, e->hidden);
    return int8_layout(chunk->x8 + first * e->hidden, e->hidden, chunk->x_scales + first);
}

/* intermediate = activation(x up) for the columns from `begin` to `end`; this thread computes share `index` of `num_shares`. */
static void mlp_up(
    const Layer *layer, const RowLayout *x, int64_t count, int64_t begin, int64_t end, int64_t index, int64_t num_shares,
    bf16 *intermediate, float *scratch
) {
    const int64_t panels = (end - begin) / PANEL, first = panels * index / num_shares, last = panels * (index + 1) / num_shares;
    RowLayout out = tile_layout(intermediate, (end - begin) * sizeof(bf16));
    out.start = (const uint8_t *)out.start + first * TILE_BYTES;
    cenote_linear_rows(&layer->up, x, count, begin / PANEL + first, begin / PANEL + last, &out, scratch);
}

/* The part of a layer after attention, for `count` rows from `first` on, by one thread. */
static void after_attention(const Encoder *e, const Layer *layer, const Chunk *chunk, const Block *block, int64_t first, int64_t count) {
    const int64_t hidden = e->hidden, panels = hidden / PANEL, group = mlp_group_width(e), width = attention_width(e);
    const Linear *next = &(layer + 1 < e->layers + e->num_layers ? layer + 1 : layer)->qkv; /* unused after the last layer */
    const int int8 = is_int8(&layer->qkv);
    bf16 *x = chunk->x + first * hidden;
    int8_t *x8 = int8 ? chunk->x8 + first * hidden : NULL;
    RowLayout rows = row_major(chunk->attn_out + first * width, width * sizeof(bf16));
    if (int8) {
        quantize_rows(layer->out.smooth_scales, &rows, 0, count, width, block->int8_rows, block->scales);
        rows = int8_layout(block->int8_rows, width, block->scales);
    }
    cenote_linear_partial_sums(&layer->out, &rows, count, 0, panels, 0, num_steps(&layer->out), 0, block->sums, block->scratch);
    add_norm(&layer->out, &layer->mixer_norm, &layer->up, 0, count, block, block->sums, x, x8, chunk->x_scales + first);
    const RowLayout x_rows = state_layout(e, chunk, first);
    for (int64_t begin = 0; begin < e->intermediate; begin += group) {
        const int64_t end = min_i64(begin + group, e->intermediate), step = int8 ? 64 : 32;
        mlp_up(layer, &x_rows, count, begin, end, 0, 1, block->intermediate, block->scratch);
        rows = bf16_layout(block->intermediate, end - begin);
        if (int8) {
            const float *smooth_scales = layer->down.smooth_scales ? layer->down.smooth_scales + begin : NULL;
            quantize_rows(smooth_scales, &rows, 0, count, end - begin, block->int8_rows, block->scales);
            rows = int8_layout(block->int8_rows, end - begin, block->scales);
        }
        cenote_linear_partial_sums(&layer->down, &rows, count, 0, panels, begin / step, end / step, begin > 0, block->sums, block->scratch);
    }
    add_norm(&layer->down, &layer->mlp_norm, next, 0, count, block, block->sums, x, x8, chunk->x_scales + first);
}

/* The same for few rows: threads split the outputs of every linear layer and share buffers. */
static void after_attention_shared(
    const Encoder *e, const Layer *layer, const Chunk *chunk, const Block *block, const Block *shared, int64_t count, Team *team
) {
    const int64_t panels = e->hidden / PANEL, group = mlp_group_width(e), width = attention_width(e);
    const int64_t padded = round_up(count, 2 * TILE_ROWS);
    const Linear *next = &(layer + 1 < e->layers + e->num_layers ? layer + 1 : layer)->qkv; /* unused after the last layer */
    const int int8 = is_int8(&layer->qkv);
    const int64_t first = panels * team->index / team->count, last = panels * (team->index + 1) / team->count;
    const int64_t from = count * team->index / team->count, until = count * (team->index + 1) / team->count; /* rows */
    int8_t *x8 = int8 ? chunk->x8 : NULL;
    RowLayout rows = row_major(chunk->attn_out, width * sizeof(bf16));
    if (int8) { /* cheaper for each thread to repeat than to synchronize */
        quantize_rows(layer->out.smooth_scales, &rows, 0, count, width, block->int8_rows, block->scales);
        rows = int8_layout(block->int8_rows, width, block->scales);
    }
    cenote_linear_partial_sums(&layer->out, &rows, count, first, last, 0, num_steps(&layer->out), 0, shared->sums, block->scratch);
    team_barrier(team);
    add_norm(&layer->out, &layer->mixer_norm, &layer->up, from, until, block, shared->sums, chunk->x, x8, chunk->x_scales);
    team_barrier(team);
    const RowLayout x_rows = state_layout(e, chunk, 0);
    for (int64_t begin = 0; begin < e->intermediate; begin += group)
        mlp_up(layer, &x_rows, count, begin, min_i64(begin + group, e->intermediate), team->index, team->count,
            shared->intermediate + begin * padded, block->scratch);
    team_barrier(team);
    for (int64_t begin = 0; begin < e->intermediate; begin += group) {
        const int64_t end = min_i64(begin + group, e->intermediate), step = int8 ? 64 : 32;
        rows = bf16_layout(shared->intermediate + begin * padded, end - begin);
        if (int8) {
            const float *smooth_scales = layer->down.smooth_scales ? layer->down.smooth_scales + begin : NULL;
            quantize_rows(smooth_scales, &rows, 0, count, end - begin, block->int8_rows, block->scales);
            rows = int8_layout(block->int8_rows, end - begin, block->scales);
        }
        cenote_linear_partial_sums(&layer->down, &rows, count, first, last, begin / step, end / step, begin > 0, shared->sums,
            block->scratch);
    }
    team_barrier(team);
    add_norm(&layer->down, &layer->mlp_norm, next, from, until, block, shared->sums, chunk->x, x8, chunk->x_scales);
    team_barrier(team);
}

static void attend_chunk(
    const Encoder *e, const Chunk *chunk, const int64_t *offsets, int64_t members, const AttentionScratch *scratch, const Team *team
) {
    const int64_t dim = e->head_dim, query = attention_width(e), keys = e->kv_heads * dim, row = query + 2 * keys;
    const int64_t group = e->heads / e->kv_heads;
    for (int64_t unit = team->index; unit < members * e->kv_heads; unit += team->count) {
        const int64_t member = unit / e->kv_heads, head = unit % e->kv_heads, start = offsets[member] - offsets[0];
        const bf16 *row_start = chunk->qkv + start * row;
        const HeadGroup heads = {
            .query = row_start + head * group * dim, .key = row_start + query + head * dim, .value = row_start + query + keys + head * dim,
            .out = chunk->attn_out + start * query + head * group * dim, .query_stride = row, .key_stride = row, .value_stride = row,
            .out_stride = query, .head_dim = dim, .group = group, .window = e->window, .scale = e->scale, .causal = e->causal, .is_bfloat16 = 1,
        };
        cenote_attend_sequence(&heads, offsets[member + 1] - offsets[member], scratch);
    }
}

/* Sum of the token, type and position embeddings, normalized. */
static void embed_token(const Encoder *e, const EncoderInput *batch, int64_t token, float *sum, uint8_t *row_start) {
    const Embedding *tables = &e->embedding;
    const int64_t hidden = e->hidden;
    const bf16 *word = tables->tokens + batch->token_ids[token] * hidden;
    const bf16 *type = tables->types ? tables->types + (batch->types ? batch->types[token] : 0) * hidden : NULL;
    const bf16 *position = tables->positions ? tables->positions + (batch->positions[token] + tables->position_offset) * hidden : NULL;
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
    const Encoder *e, const EncoderInput *batch, const Chunk *chunk, const Block *block, int64_t start, int64_t first, int64_t last
) {
    const int64_t hidden = e->hidden;
    for (int64_t row = first; row < last; row++) {
        uint8_t *row_start = tile_row(chunk->x, row, hidden * sizeof(bf16));
        if (batch->rows == NULL) embed_token(e, batch, start + row, block->row_buffer, row_start);
        else
            for (int64_t c = 0; c < hidden; c += 32)
                _mm512_store_si512(row_start + c / 32 * TILE_BYTES, _mm512_loadu_si512(batch->rows + (start + row) * hidden + c));
    }
    const RowLayout rows = bf16_layout(chunk->x, hidden);
    if (is_int8(&e->layers->qkv)) quantize_rows(e->layers->qkv.smooth_scales, &rows, first, last, hidden, chunk->x8, chunk->x_scales);
}

static void store_rows(const Encoder *e, const EncoderInput *batch, const Chunk *chunk, int64_t start, int64_t first, int64_t last) {
    const int64_t hidden = e->hidden;
    for (int64_t row = first; row < last; row++) {
        const uint8_t *row_start = tile_row(chunk->x, row, hidden * sizeof(bf16));
        for (int64_t c = 0; c < hidden; c += 32)
            _mm512_storeu_si512(batch->out + (start + row) * hidden + c, _mm512_load_si512(row_start + c / 32 * TILE_BYTES));
    }
}

static void encode_chunk(
    const Encoder *e, const EncoderInput *batch, const int64_t *offsets, int64_t members, const Chunk *chunk, const Block *block,
    const Block *shared, const AttentionScratch *scratch, Team *team
) {
    const int64_t rows = offsets[members] - offsets[0], panels = num_panels(&e->layers->qkv);
    const int64_t block_rows = min_i64(max_block_rows(e), round_up((rows + team->count - 1) / team->count, 2 * TILE_ROWS));
    const int64_t row_bytes = e->layers->qkv.outputs * sizeof(bf16), stride = team->count * block_rows, mine = team->index * block_rows;
    const int by_columns = team->count > 1 && rows < 2 * TILE_ROWS * team->count;
    for (int64_t first = mine; first < rows; first += stride)
        load_rows(e, batch, chunk, block, offsets[0], first, min_i64(rows, first + block_rows));
    if (by_columns) team_barrier(team);
    for (const Layer *layer = e->layers; layer < e->layers + e->num_layers; layer++) {
        if (by_columns) {
            const int64_t from = panels * team->index / team->count, until = panels * (team->index + 1) / team->count;
            const RowLayout x = state_layout(e, chunk, 0);
            const RowLayout out = row_major(chunk->qkv + from * PANEL, row_bytes);
            cenote_linear_rows(&layer->qkv, &x, rows, from, until, &out, block->scratch);
        } else
            for (int64_t first = mine; first < rows; first += stride) {
                const RowLayout x = state_layout(e, chunk, first);
                const RowLayout out = row_major((uint8_t *)chunk->qkv + first * row_bytes, row_bytes);
                cenote_linear_rows(&layer->qkv, &x, min_i64(block_rows, rows - first), 0, panels, &out, block->scratch);
            }
        team_barrier(team);
        attend_chunk(e, chunk, offsets, members, scratch, team);
        team_barrier(team);
        if (by_columns) after_attention_shared(e, layer, chunk, block, shared, rows, team);
        else
            for (int64_t first = mine; first < rows; first += stride)
                after_attention(e, layer, chunk, block, first, min_i64(block_rows, rows - first));
    }
    for (int64_t first = mine; first < rows; first += stride)
        store_rows(e, batch, chunk, offsets[0], first, min_i64(rows, first + block_rows));
    team_barrier(team);
}

static Chunk alloc_chunk(const Encoder *e, int64_t rows, uint8_t **memory) {
    const int64_t padded = round_up(rows, 2 * TILE_ROWS);
    Chunk chunk;
    chunk.x = arena_take(memory, padded * e->hidden * sizeof(bf16));
    chunk.qkv = arena_take(memory, padded * e->layers->qkv.outputs * sizeof(bf16));
    chunk.attn_out = arena_take(memory, padded * attention_width(e) * sizeof(bf16));
    chunk.x8 = arena_take(memory, is_int8(&e->layers->qkv) ? padded * e->hidden : 0);
    chunk.x_scales = arena_take(memory, padded * sizeof(float));
    return chunk;
}

static Block alloc_block(const Encoder *e, int64_t rows, int64_t intermediate, uint8_t **memory) {
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

static int has_out_of_range_ids(const Encoder *e, const EncoderInput *batch, int64_t tokens) {
    const Embedding *tables = &e->embedding;
    const uint64_t num_tokens = tables->num_tokens, num_positions = tables->num_positions, num_types = tables->num_types;
    int found = 0;
    for (int64_t token = 0; token < tokens; token++) {
        found |= (uint64_t)batch->token_ids[token] >= num_tokens;
        if (tables->positions) found |= (uint64_t)(batch->positions[token] + tables->position_offset) >= num_positions;
        if (tables->types && batch->types) found |= (uint64_t)batch->types[token] >= num_types;
    }
    return found;
}

/* offsets: [size + 1] cumulative sequence lengths. Of the `threads` that are started, `workers` compute: OpenMP ends threads if the next
 * region has fewer. Returns 0; 1 if no scratch memory could be allocated; 2 if an id is out of the range of its table. On failure nothing
 * is written. */
int cenote_encode(const Encoder *e, const EncoderInput *batch, const int64_t *offsets, int64_t size, int64_t threads, int64_t workers) {
    const int64_t tokens = offsets[size], block_rows = max_block_rows(e);
    if (tokens == 0) return 0;
    if (batch->rows == NULL && has_out_of_range_ids(e, batch, tokens)) return 2;
    int64_t *starts = malloc((size + 1) * sizeof(int64_t)), count = 0, longest = 0, max_rows = 0, next = 0, failed = 0, arrived = 0;
    if (starts == NULL) return 1;
    /* several chunks per thread, so that threads finish at about the same time */
    const int64_t target_rows = max_i64(2 * TILE_ROWS, min_i64(block_rows, tokens / (4 * workers)));
    for (int64_t member = 0; member < size; member++) {
        longest = max_i64(longest, offsets[member + 1] - offsets[member]);
        if (member == 0 || offsets[member + 1] - offsets[starts[count - 1]] > target_rows) starts[count++] = member;
    }
    starts[count] = size;
    for (int64_t i = 0; i < count; i++) max_rows = max_i64(max_rows, offsets[starts[i + 1]] - offsets[starts[i]]);
    const int is_shared = count < workers;
    uint8_t *shared_size = NULL, *shared_memory = NULL;
    if (is_shared) {
        alloc_chunk(e, max_rows, &shared_size);
        alloc_block(e, min_i64(max_rows, 2 * TILE_ROWS * workers), e->intermediate, &shared_size);
        shared_memory = cenote_scratch(SHARED_SCRATCH, (size_t)shared_size);
        failed = shared_memory == NULL;
    }
#pragma omp parallel num_threads(threads) if (workers > 1)
    {
        const int64_t index = omp_get_thread_num(), num_workers = min_i64(workers, omp_get_num_threads());
        const int is_worker = index < num_workers;
        uint8_t *thread_size = NULL;
        if (!is_shared) alloc_chunk(e, max_rows, &thread_size);
        alloc_block(e, min_i64(max_rows, block_rows), mlp_group_width(e), &thread_size);
        const size_t thread_bytes = (size_t)thread_size + cenote_attention_scratch_bytes(longest, e->head_dim);
        uint8_t *memory = is_worker ? cenote_scratch(THREAD_SCRATCH, thread_bytes) : NULL, *shared_next = shared_memory;
        if (is_worker && memory == NULL) __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
#pragma omp barrier
        if (!failed && is_worker) {
            Team team = {0, 1, 0, &arrived};
            Block shared = {0};
            Chunk chunk;
            if (is_shared) {
                team.index = index, team.count = num_workers;
                chunk = alloc_chunk(e, max_rows, &shared_next);
                shared = alloc_block(e, min_i64(max_rows, 2 * TILE_ROWS * workers), e->intermediate, &shared_next);
            } else chunk = alloc_chunk(e, max_rows, &memory);
            const Block block = alloc_block(e, min_i64(max_rows, block_rows), mlp_group_width(e), &memory);
            const AttentionScratch scratch = cenote_attention_scratch(memory, longest, e->head_dim);
            const unsigned before = amx_begin();
            for (int64_t i = 0; i < count; i++) {
                if (!is_shared && (i = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) >= count) break;
                encode_chunk(e, batch, offsets + starts[i], starts[i + 1] - starts[i], &chunk, &block, &shared, &scratch, &team);
            }
            amx_end(before);
        }
    }
    free(starts);
    return failed;
}
#endif
