/* All layers of a transformer over packed sequences in one call, with the products of a level.
 *
 * Each thread takes a chunk of adjacent sequences and runs all layers on it: the rows stay in its caches, and threads do not
 * synchronize. If there are fewer chunks than threads, all threads work on one chunk at a time and split every step.
 */
#include "encoder.h"
#include "attention.h"
#include "scratch.h"
#include <stdlib.h>
#include <string.h>

int omp_get_thread_num(void); /* declared here: omp.h is not installed with every compiler */
int omp_get_num_threads(void);

/* Rows of a chunk. Beyond chunks_per_thread for each thread, the last chunks are smaller, so that all threads finish at about the same
 * time. Tiles multiply several times as fast, while each chunk reads all weights once: chunks are larger, up to chunks_per_thread of equal
 * size, and all threads share a batch with less than min_rows for each, in chunks of MAX_SHARED_ROWS, which bound the scratch memory. */
typedef struct {
    int64_t min_rows, max_rows, chunks_per_thread;
} ChunkSize;

static const ChunkSize CHUNK_SIZE = {32, 96, 4}, CHUNK_SIZE_WITH_TILES = {128, 256, 2};
enum { MAX_SHARED_ROWS = 1024 };

/* Buffers of one chunk: [rows][...] each; the intermediate rows of the MLP may be packed. They are in the same memory as the buffers of
 * attention: neither is needed while the other one is in use, and fewer bytes have to stay in the caches. */
typedef struct {
    float *x, *normed, *branch, *qkv, *attn_out, *intermediate;
    PackedRows packed, packed_intermediate;
} Chunk;

static Chunk take_chunk(const LevelEncoder *e, int64_t rows, uint8_t **memory) {
    Chunk chunk;
    size_t packed = 0;
    for (const LevelLayer *layer = e->layers; layer < e->layers + e->num_layers; layer++) {
        const PackedLinear *linears[] = {&layer->qkv, &layer->out, &layer->up, &layer->down};
        for (int i = 0; i < 4; i++) {
            const size_t bytes = cenote_packed_rows_bytes(e->level, linears[i], rows);
            packed = bytes > packed ? bytes : packed;
        }
    }
    chunk.x = arena_take(memory, rows * e->hidden * sizeof(float));
    chunk.normed = e->is_post_norm ? chunk.x : arena_take(memory, rows * e->hidden * sizeof(float));
    chunk.branch = arena_take(memory, rows * e->hidden * sizeof(float));
    uint8_t *attention_end = *memory, *mlp_end = *memory;
    chunk.qkv = arena_take(&attention_end, rows * e->layers->qkv.outputs * sizeof(float));
    chunk.attn_out = arena_take(&attention_end, rows * attention_width(e) * sizeof(float));
    chunk.intermediate = arena_take(&mlp_end, (rows + MAX_TILE_ROWS) * e->layers->up.outputs * sizeof(float));
    *memory = attention_end > mlp_end ? attention_end : mlp_end;
    chunk.packed.tiles = arena_take(memory, packed);
    chunk.packed.scales = arena_take(memory, (rows + MAX_TILE_ROWS) * sizeof(float));
    chunk.packed_intermediate.tiles = (uint8_t *)chunk.intermediate;
    chunk.packed_intermediate.scales = arena_take(memory, (rows + MAX_TILE_ROWS) * sizeof(float));
    return chunk;
}

static const Norm NOTHING = {.kind = NO_NORM};

/* This thread's rows: norm from `x` to `normed`, then pack them for the layer (unless NULL). */
static void norm_and_pack(
    const LevelEncoder *e, const Norm *norm, const PackedLinear *layer, const float *x, float *normed, int64_t rows, const Chunk *chunk, Team *team
) {
    const int64_t unit = rows_to_pack(product_of(e->level, layer ? layer : &e->layers->qkv)), hidden = e->hidden;
    for (int64_t first = team->share.index * unit; first < rows; first += team->share.count * unit) {
        if (norm->kind != NO_NORM)
            for (int64_t row = first; row < min_of(rows, first + unit); row++)
                e->level->rows->norm(norm, x + row * hidden, hidden, normed + row * hidden);
        if (layer) {
            const Rows all = {norm->kind != NO_NORM ? normed : x, hidden, rows, hidden};
            cenote_pack_rows(e->level, layer, &all, first, &chunk->packed);
        }
    }
    wait_for_team(team);
}

/* Pack this thread's rows of `from` for the layer. */
static void pack_rows(const LevelEncoder *e, const PackedLinear *layer, const float *from, int64_t stride, int64_t rows, const Chunk *chunk, Team *team) {
    const int64_t unit = rows_to_pack(product_of(e->level, layer));
    const Rows all = {from, stride, rows, layer->inputs};
    for (int64_t first = team->share.index * unit; first < rows; first += team->share.count * unit)
        cenote_pack_rows(e->level, layer, &all, first, &chunk->packed);
    wait_for_team(team);
}

/* Gate the intermediate rows of an MLP and pack them. Alone, a thread packs rows while they are in its caches; several share the rows. */
static void gate_and_pack(const LevelEncoder *e, const LevelLayer *layer, int64_t rows, const Chunk *chunk, Team *team) {
    const int64_t width = layer->up.outputs, unit = team->share.count == 1 ? rows_to_pack(product_of(e->level, &layer->down)) : 1;
    const Rows all = {chunk->intermediate, width, rows, layer->down.inputs};
    for (int64_t first = team->share.index * unit; first < rows; first += team->share.count * unit) {
        for (float *row = chunk->intermediate + first * width, *end = chunk->intermediate + min_of(rows, first + unit) * width; row < end; row += width)
            e->level->rows->gate(row, layer->down.inputs, e->gate_activation, row);
        if (team->share.count == 1) cenote_pack_rows(e->level, &layer->down, &all, first, &chunk->packed);
    }
    wait_for_team(team);
    if (team->share.count > 1) pack_rows(e, &layer->down, chunk->intermediate, width, rows, chunk, team);
}

static void run_linear(const LevelEncoder *e, const PackedLinear *layer, const PackedRows *packed, int64_t rows, Results results, Team *team) {
    cenote_linear_panels(e->level, layer, packed, rows, team->share, &results);
    wait_for_team(team);
}

/* x += residual_scale * out_norm(rows x weights) */
static void add_linear(
    const LevelEncoder *e, const PackedLinear *layer, const Norm *out_norm, const PackedRows *packed, int64_t rows, const Chunk *chunk, Team *team
) {
    const int is_plain = out_norm->kind == NO_NORM && e->residual_scale == 1.0f;
    const Results results = {.rows = is_plain ? chunk->x : chunk->branch, .stride = e->hidden, .add = is_plain};
    run_linear(e, layer, packed, rows, results, team);
    if (is_plain) return;
    for (int64_t row = team->share.index; row < rows; row += team->share.count) {
        float *branch = chunk->branch + row * e->hidden;
        if (out_norm->kind != NO_NORM) e->level->rows->norm(out_norm, branch, e->hidden, branch);
        e->level->rows->add_scaled(chunk->x + row * e->hidden, branch, e->residual_scale, e->hidden);
    }
    wait_for_team(team);
}

/* Norms and rotary embedding of the query and key heads of a row. */
static void prepare_row(const LevelEncoder *e, const LevelLayer *layer, const LevelInput *batch, int64_t token, float *row) {
    const RowKernels *kernels = e->level->rows;
    const int is_local = layer->rope == LOCAL_ROPE, has_norms = layer->query_norm.kind != NO_NORM;
    const int64_t dim = e->head_dim, half = is_local ? batch->local_rotary_half : batch->rotary_half, keys = attention_width(e);
    const float *cosine = is_local ? batch->local_cosine : batch->cosine, *sine = is_local ? batch->local_sine : batch->sine;
    if (has_norms && e->has_full_width_qk_norm) {
        kernels->norm(&layer->query_norm, row, keys, row);
        kernels->norm(&layer->key_norm, row + keys, e->kv_heads * dim, row + keys);
    }
    for (int64_t index = 0; index < e->heads + e->kv_heads; index++) {
        float *head = row + index * dim;
        if (has_norms && !e->has_full_width_qk_norm)
            kernels->norm(index < e->heads ? &layer->query_norm : &layer->key_norm, head, dim, head);
        if (layer->rope != NO_ROPE) kernels->rope(head, half, cosine + token * half, sine + token * half, e->is_interleaved);
    }
}

static void prepare_heads(const LevelEncoder *e, const LevelLayer *layer, const LevelInput *batch, int64_t start, int64_t rows, const Chunk *chunk, Team *team) {
    if (layer->rope == NO_ROPE && layer->query_norm.kind == NO_NORM) return;
    for (int64_t row = team->share.index; row < rows; row += team->share.count)
        prepare_row(e, layer, batch, start + row, chunk->qkv + row * layer->qkv.outputs);
    wait_for_team(team);
}

void cenote_attend_chunk(
    const LevelEncoder *e, const LevelLayer *layer, const LevelInput *batch, const void *qkv, void *out, int is_bfloat16, const int64_t *offsets,
    int64_t members, uint8_t *memory, Team *team
) {
    const int64_t dim = e->head_dim, query = attention_width(e), keys = e->kv_heads * dim, row = query + 2 * keys, group = e->heads / e->kv_heads;
    const int64_t distances = 2 * batch->max_length - 1, size = is_bfloat16 ? sizeof(uint16_t) : sizeof(float);
    const int64_t *num_keys = batch->num_keys ? batch->num_keys + (offsets - batch->offsets) : NULL;
    for (int64_t unit = team->share.index; unit < members * e->kv_heads; unit += team->share.count) {
        const int64_t member = unit / e->kv_heads, head = unit % e->kv_heads, start = offsets[member] - offsets[0];
        const int64_t length = offsets[member + 1] - offsets[member];
        const uint8_t *first = (const uint8_t *)qkv + start * row * size;
        const HeadGroup heads = {
            .query = first + head * group * dim * size, .key = first + (query + head * dim) * size,
            .value = first + (query + keys + head * dim) * size, .out = (uint8_t *)out + (start * query + head * group * dim) * size,
            .query_stride = row, .key_stride = row, .value_stride = row,
            .out_stride = query, .head_dim = dim, .group = group, .num_keys = num_keys ? num_keys[member] : length, .window = layer->window,
            .bias = batch->bias ? batch->bias + head * group * distances + batch->max_length - 1 : NULL, .bias_stride = distances,
            .scale = e->scale, .softcap = e->softcap, .causal = e->causal, .is_bfloat16 = is_bfloat16,
        };
        cenote_level_attend(e->level, &heads, length, e->attention_format, memory);
    }
    wait_for_team(team);
}

static void run_mlp(const LevelEncoder *e, const LevelLayer *layer, int64_t rows, const Chunk *chunk, Team *team) {
    if (!e->is_gated && can_pack_results(e->level, &layer->up, &layer->down)) {
        run_linear(e, &layer->up, &chunk->packed, rows, (Results){.next = &layer->down, .packed = chunk->packed_intermediate}, team);
        add_linear(e, &layer->down, &layer->mlp_out_norm, &chunk->packed_intermediate, rows, chunk, team);
        return;
    }
    run_linear(e, &layer->up, &chunk->packed, rows, (Results){.rows = chunk->intermediate, .stride = layer->up.outputs}, team);
    if (e->is_gated) gate_and_pack(e, layer, rows, chunk, team);
    else pack_rows(e, &layer->down, chunk->intermediate, layer->up.outputs, rows, chunk, team);
    add_linear(e, &layer->down, &layer->mlp_out_norm, &chunk->packed, rows, chunk, team);
}

static void add_table_row(const LevelEmbedding *tables, const void *table, int64_t row, int64_t width, float *sum) {
    if (tables->is_bfloat16) {
        const uint16_t *from = (const uint16_t *)table + row * width;
        for (int64_t c = 0; c < width; c++) {
            const union {
                uint32_t bits;
                float value;
            } element = {(uint32_t)from[c] << 16};
            sum[c] += element.value;
        }
    } else {
        const float *from = (const float *)table + row * width;
        for (int64_t c = 0; c < width; c++) sum[c] += from[c];
    }
}

/* Sum of the token, type and position embeddings, normalized. */
static void embed_token(const LevelEncoder *e, const LevelInput *batch, int64_t token, float *out) {
    const LevelEmbedding *tables = &e->embedding;
    const int64_t hidden = e->hidden;
    memset(out, 0, hidden * sizeof(float));
    add_table_row(tables, tables->tokens, batch->token_ids[token], hidden, out);
    if (tables->types) add_table_row(tables, tables->types, batch->types ? batch->types[token] : 0, hidden, out);
    if (tables->positions) add_table_row(tables, tables->positions, batch->positions[token] + tables->position_offset, hidden, out);
    e->level->rows->norm(&tables->norm, out, hidden, out);
}

static void load_rows(const LevelEncoder *e, const LevelInput *batch, int64_t start, int64_t rows, const Chunk *chunk, Team *team) {
    for (int64_t row = team->share.index; row < rows; row += team->share.count) {
        float *to = chunk->x + row * e->hidden;
        if (batch->rows == NULL) embed_token(e, batch, start + row, to);
        else memcpy(to, (const float *)batch->rows + (start + row) * e->hidden, e->hidden * sizeof(float));
    }
    wait_for_team(team);
}

static void encode_chunk(
    const LevelEncoder *e, const LevelInput *batch, const int64_t *offsets, int64_t members, int64_t max_rows, uint8_t *chunk_memory,
    uint8_t *memory, Team *team
) {
    const Chunk taken = take_chunk(e, max_rows, &chunk_memory), *chunk = &taken;
    const int64_t rows = offsets[members] - offsets[0];
    float *out = (float *)batch->out + offsets[0] * e->hidden;
    load_rows(e, batch, offsets[0], rows, chunk, team);
    norm_and_pack(e, e->is_post_norm ? &NOTHING : &e->layers->mixer_norm, &e->layers->qkv, chunk->x, chunk->normed, rows, chunk, team);
    for (const LevelLayer *layer = e->layers, *next = layer + 1, *end = layer + e->num_layers; layer < end; layer++, next++) {
        run_linear(e, &layer->qkv, &chunk->packed, rows, (Results){.rows = chunk->qkv, .stride = layer->qkv.outputs}, team);
        prepare_heads(e, layer, batch, offsets[0], rows, chunk, team);
        cenote_attend_chunk(e, layer, batch, chunk->qkv, chunk->attn_out, 0, offsets, members, memory, team);
        pack_rows(e, &layer->out, chunk->attn_out, attention_width(e), rows, chunk, team);
        add_linear(e, &layer->out, &layer->mixer_out_norm, &chunk->packed, rows, chunk, team);
        norm_and_pack(e, e->is_post_norm ? &layer->mixer_norm : &layer->mlp_norm, &layer->up, chunk->x, chunk->normed, rows, chunk, team);
        run_mlp(e, layer, rows, chunk, team);
        const Norm *norm = e->is_post_norm ? &layer->mlp_norm : next < end ? &next->mixer_norm : &e->final_norm;
        norm_and_pack(e, norm, next < end ? &next->qkv : NULL, chunk->x, next < end ? chunk->normed : out, rows, chunk, team);
    }
    if (!e->is_post_norm && e->final_norm.kind == NO_NORM)
        for (int64_t row = team->share.index; row < rows; row += team->share.count)
            memcpy(out + row * e->hidden, chunk->x + row * e->hidden, e->hidden * sizeof(float));
    wait_for_team(team);
}

/* Memory of a chunk, which `threads` share. */
static size_t chunk_bytes(const LevelEncoder *e, int64_t rows, int64_t threads) {
    if (e->keeps_tiles) return e->level->tiles->layers->chunk_bytes(e, rows, threads);
    uint8_t *size = NULL;
    take_chunk(e, rows, &size);
    return (size_t)size;
}

/* Memory of each thread for the work on a chunk. */
static size_t work_bytes(const LevelEncoder *e, int64_t rows, int64_t longest) {
    const size_t attention_bytes = cenote_level_attention_bytes(e->level, longest, e->head_dim, e->attention_format);
    return attention_bytes + (e->keeps_tiles ? e->level->tiles->layers->thread_bytes(e, rows) : 0);
}

static int has_out_of_range_ids(const LevelEncoder *e, const LevelInput *batch, int64_t tokens) {
    const LevelEmbedding *tables = &e->embedding;
    const uint64_t num_tokens = tables->num_tokens, num_positions = tables->num_positions, num_types = tables->num_types;
    int found = 0;
    for (int64_t token = 0; token < tokens; token++) {
        found |= (uint64_t)batch->token_ids[token] >= num_tokens;
        if (tables->positions) found |= (uint64_t)(batch->positions[token] + tables->position_offset) >= num_positions;
        if (tables->types && batch->types) found |= (uint64_t)batch->types[token] >= num_types;
    }
    return found;
}

static int64_t count_rows(const int64_t *offsets, const int64_t *starts, int64_t chunk) { return offsets[starts[chunk + 1]] - offsets[starts[chunk]]; }

/* The chunks, largest first: the threads finish at about the same time. */
static void sort_chunks(const int64_t *offsets, const int64_t *starts, int64_t count, int64_t *order) {
    for (int64_t chunk = 0; chunk < count; chunk++) {
        const int64_t rows = count_rows(offsets, starts, chunk);
        int64_t place = chunk;
        for (; place > 0 && count_rows(offsets, starts, order[place - 1]) < rows; place--) order[place] = order[place - 1];
        order[place] = chunk;
    }
}

/* Rows of the next chunk, with `left` of all tokens left: the last chunks are small, unless there are few. */
static int64_t chunk_target(const LevelEncoder *e, int64_t tokens, int64_t left, int64_t threads) {
    const Level *level = e->level;
    if (e->keeps_tiles) return max_of(MAX_TILE_ROWS, min_of(level->tiles->layers->block_rows(e), tokens / (CHUNK_SIZE.chunks_per_thread * threads)));
    if (!level->tiles) return max_of(CHUNK_SIZE.min_rows, min_of(CHUNK_SIZE.max_rows, left / (CHUNK_SIZE.chunks_per_thread * threads)));
    const ChunkSize sizes = CHUNK_SIZE_WITH_TILES;
    if (tokens < threads * sizes.min_rows) return MAX_SHARED_ROWS;
    const int64_t chunks = divide_up(tokens, threads * sizes.max_rows) * threads;
    if (chunks <= sizes.chunks_per_thread * threads) return divide_up(tokens, chunks);
    return max_of(sizes.min_rows, min_of(sizes.max_rows, left / (sizes.chunks_per_thread * threads)));
}

/* Whether a chunk takes one more sequence: until its rows fill a block, or as long as it is nearer to its target with that sequence. */
static int fits_chunk(const LevelEncoder *e, int64_t rows, int64_t length, int64_t target_rows) {
    return e->keeps_tiles ? rows + length <= target_rows : rows + length - target_rows < target_rows - rows;
}

/* Whether all threads take one chunk at a time: the batch is small, or the largest chunk has more than 1.5 times the rows of an average
 * thread, so that the others would wait for it. */
static int shares_chunks(const Level *level, int64_t tokens, int64_t max_rows, int64_t threads) {
    return level->tiles && threads > 1 && (tokens < threads * CHUNK_SIZE_WITH_TILES.min_rows || 2 * max_rows * threads > 3 * tokens);
}

/* offsets: [size + 1] cumulative sequence lengths. Of the `threads` that are started, `workers` compute: OpenMP ends threads if the next
 * region has fewer. Returns 0; 1 if no scratch memory could be allocated; 2 if an id is out of the range of its table. On failure nothing
 * is written. */
int cenote_level_encode(
    const LevelEncoder *e, const LevelInput *batch, const int64_t *offsets, int64_t size, int64_t threads, int64_t workers
) {
    const int64_t tokens = offsets[size];
    if (tokens == 0) return 0;
    if (batch->rows == NULL && has_out_of_range_ids(e, batch, tokens)) return 2;
    int64_t *starts = malloc((2 * size + 1) * sizeof(int64_t)), count = 0, longest = 0, next = 0, failed = 0, arrived = 0;
    if (starts == NULL) return 1;
    for (int64_t member = 0, target_rows = 0; member < size; member++) {
        const int64_t length = offsets[member + 1] - offsets[member], rows = count ? offsets[member] - offsets[starts[count - 1]] : 0;
        longest = max_of(longest, length);
        if (count && (rows == 0 || length == 0)) continue; /* no chunk without rows */
        if (count && fits_chunk(e, rows, length, target_rows)) continue;
        starts[count++] = member;
        target_rows = chunk_target(e, tokens, tokens - offsets[member], workers);
    }
    starts[count] = size;
    int64_t *order = starts + size + 1;
    sort_chunks(offsets, starts, count, order);
    const int64_t max_rows = count_rows(offsets, starts, order[0]);
    const int is_shared = count < workers || (!e->keeps_tiles && shares_chunks(e->level, tokens, max_rows, workers));
    const size_t bytes = chunk_bytes(e, max_rows, is_shared ? workers : 1), thread_bytes = work_bytes(e, max_rows, longest);
    uint8_t *shared_memory = NULL;
    if (is_shared) {
        shared_memory = cenote_scratch(SHARED_SCRATCH, bytes);
        failed = shared_memory == NULL;
    }
#pragma omp parallel num_threads(threads) if (workers > 1)
    {
        const Share all = {omp_get_thread_num(), min_of(workers, omp_get_num_threads())};
        const int is_worker = all.index < all.count;
        uint8_t *memory = is_worker ? cenote_scratch(THREAD_SCRATCH, thread_bytes + (is_shared ? 0 : bytes)) : NULL;
        if (is_worker && memory == NULL) __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
#pragma omp barrier
        if (!failed && is_worker) {
            Team team = {is_shared ? all : (Share){0, 1}, 0, &arrived};
            const unsigned before = begin_tiles(e->level);
            uint8_t *chunk_memory = is_shared ? shared_memory : arena_take(&memory, bytes);
            for (int64_t i = 0; i < count; i++) {
                if (!is_shared && (i = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) >= count) break;
                const int64_t first = starts[order[i]], end = starts[order[i] + 1];
                if (e->keeps_tiles)
                    e->level->tiles->layers->encode_chunk(e, batch, offsets + first, end - first, max_rows, chunk_memory, memory, &team);
                else encode_chunk(e, batch, offsets + first, end - first, max_rows, chunk_memory, memory, &team);
            }
            end_tiles(e->level, before);
        }
    }
    free(starts);
    return failed;
}
