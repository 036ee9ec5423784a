/* A whole stack of post-norm blocks (BERT and its kin) over packed sequences, without leaving native code.
 *
 * Threads take chunks of neighbouring sequences and carry each through all layers: its rows stay in their caches, and nobody
 * waits for anybody. Where there are fewer chunks than threads, all of them work on one chunk at a time.
 */
#include "native_attention.h"
#include "native_linear.h"
#include "native_norm.h"
#include <sched.h>

int omp_get_thread_num(void); /* omp.h is not everywhere where a compiler is */
int omp_get_num_threads(void);

enum { GROUP = 512 }; /* columns between the two halves of an MLP that are computed at once */

typedef struct {
    Linear qkv, out, up, down;
    Norm mixer_norm, mlp_norm;
} Layer;

/* Tables of bfloat16 whose rows are summed and normed: of tokens, positions and token types; any but the first may be NULL. */
typedef struct {
    const bf16 *tokens, *positions, *types;
    int64_t num_tokens, num_positions, num_types, position_offset;
    Norm norm;
} Embedding;

typedef struct {
    const Layer *layers;
    int64_t num_layers, hidden, inner, heads, kv_heads, head_dim, window;
    float scale;
    int32_t causal;
    Embedding embedding;
} Encoder;

typedef struct {
    const bf16 *rows; /* what layers start from; NULL: the rest says what to look up */
    const int64_t *token_ids, *positions, *types;
    bf16 *out;
} Batch;

/* The threads that work on one chunk. */
typedef struct {
    int64_t index, count, passed;
    int64_t *arrived;
} Team;

static void meet(Team *team) {
    if (team->count == 1) return;
    team->passed += team->count;
    __atomic_add_fetch(team->arrived, 1, __ATOMIC_ACQ_REL);
    for (int64_t tries = 0; __atomic_load_n(team->arrived, __ATOMIC_ACQUIRE) < team->passed; tries++)
        if (tries < 4096) _mm_pause();
        else sched_yield();
}

/* Memory of one chunk: [rows][...] each. */
typedef struct {
    bf16 *x, *qkv, *mixed; /* x in tiles */
    int8_t *x8;
    float *x_scales;
} Chunk;

/* Memory for a block of its rows, between attention and the end of a layer. */
typedef struct {
    float *sums, *room, *scales, *line; /* line: one row */
    bf16 *inner;
    int8_t *narrow; /* attention's output or a group of inner columns as int8 */
} Block;

static int64_t group_of(const Encoder *e) {
    const int64_t groups = (e->inner + GROUP - 1) / GROUP;
    return whole((e->inner + groups - 1) / groups, 64);
}

/* Rows whose sums, of 4 bytes each, leave half of the second cache to weights. */
static int64_t rows_at_once(const Encoder *e) { return larger(64, smaller(384, 147456 / e->hidden / 32 * 32)); }
static int64_t width_of(const Encoder *e) { return e->heads * e->head_dim; }

static void quantize_rows(const float *evened, const Rows *from, int64_t first, int64_t last, int64_t width, int8_t *to, float *scales) {
    for (int64_t row = first; row < last; row++) {
        const uint8_t *own = (const uint8_t *)from->start + row / ROWS * from->block + row % ROWS * from->row;
        scales[row] = cenote_quantize(own, from->step, width, evened, row_in_tiles(to, row, width));
    }
}

/* x = norm(x + sums + bias), and the same as int8 where that is what the next layer reads. */
static void add_norm(
    const Linear *layer, const Norm *norm, const Linear *reader, int64_t first, int64_t last, const Block *block, const float *sums, bf16 *x, int8_t *x8,
    float *x_scales
) {
    const int64_t width = layer->outputs;
    const __m512 one = _mm512_set1_ps(1.0f);
    for (int64_t row = first; row < last; row++) {
        const float *sum = sums + row / (2 * ROWS) * 2 * ROWS * width + row % (2 * ROWS) * PANEL;
        uint8_t *own = row_in_tiles(x, row, width * sizeof(bf16));
        __m512 total = _mm512_setzero_ps(), squares = total, more = total, more_squares = total;
        for (int64_t c = 0; c < width; c += PANEL, sum += 2 * ROWS * PANEL) {
            const __m512i both = _mm512_load_si512(own + c / 32 * TILE_BYTES);
            __m512 low = _mm512_add_ps(wide(_mm512_castsi512_si256(both)), _mm512_loadu_ps(layer->bias + c));
            __m512 high = _mm512_add_ps(wide(_mm512_extracti64x4_epi64(both, 1)), _mm512_loadu_ps(layer->bias + c + 16));
            low = _mm512_fmadd_ps(_mm512_load_ps(sum), layer->scales ? _mm512_loadu_ps(layer->scales + c) : one, low);
            high = _mm512_fmadd_ps(_mm512_load_ps(sum + 16), layer->scales ? _mm512_loadu_ps(layer->scales + c + 16) : one, high);
            total = _mm512_add_ps(total, low);
            more = _mm512_add_ps(more, high);
            squares = _mm512_fmadd_ps(low, low, squares);
            more_squares = _mm512_fmadd_ps(high, high, more_squares);
            _mm512_store_ps(block->line + c, low);
            _mm512_store_ps(block->line + c + 16, high);
        }
        normalize(norm, block->line, width, _mm512_add_ps(total, more), _mm512_add_ps(squares, more_squares), own, TILE_BYTES);
        if (x8) x_scales[row] = cenote_quantize(own, TILE_BYTES, width, reader->evened, row_in_tiles(x8, row, width));
    }
}

static Rows of_bf16(const bf16 *rows, int64_t width) { return in_tiles(rows, width * sizeof(bf16)); }

static Rows of_int8(const int8_t *rows, int64_t width, const float *scales) {
    Rows found = in_tiles(rows, width);
    found.scales = scales;
    return found;
}

/* States of tokens as the layer that reads them wants them. */
static Rows states(const Encoder *e, const Chunk *chunk, int64_t first) {
    if (!is_int8(&e->layers->qkv)) return of_bf16(chunk->x + first * e->hidden, e->hidden);
    return of_int8(chunk->x8 + first * e->hidden, e->hidden, chunk->x_scales + first);
}

/* Columns `begin` to `end` between the halves of the MLP, of which this thread computes a share: inner = activation(x up). */
static void raise(const Layer *layer, const Rows *x, int64_t count, int64_t begin, int64_t end, int64_t index, int64_t shares, bf16 *inner, float *room) {
    const int64_t panels = (end - begin) / PANEL, first = panels * index / shares, last = panels * (index + 1) / shares;
    Rows out = in_tiles(inner, (end - begin) * sizeof(bf16));
    out.start = (const uint8_t *)out.start + first * TILE_BYTES;
    cenote_rows_linear(&layer->up, x, count, begin / PANEL + first, begin / PANEL + last, &out, room);
}

/* All that follows attention in a layer, for `count` rows from `first` on, by one thread. */
static void rest_of_layer(const Encoder *e, const Layer *layer, const Chunk *chunk, const Block *block, int64_t first, int64_t count) {
    const int64_t hidden = e->hidden, panels = hidden / PANEL, group = group_of(e), width = width_of(e);
    const Linear *next = &(layer + 1 < e->layers + e->num_layers ? layer + 1 : layer)->qkv; /* after the last nobody reads */
    const int int8 = is_int8(&layer->qkv);
    bf16 *x = chunk->x + first * hidden;
    int8_t *x8 = int8 ? chunk->x8 + first * hidden : NULL;
    Rows rows = side_by_side(chunk->mixed + first * width, width * sizeof(bf16));
    if (int8) {
        quantize_rows(layer->out.evened, &rows, 0, count, width, block->narrow, block->scales);
        rows = of_int8(block->narrow, width, block->scales);
    }
    cenote_rows_sums(&layer->out, &rows, count, 0, panels, 0, steps_of(&layer->out), 0, block->sums, block->room);
    add_norm(&layer->out, &layer->mixer_norm, &layer->up, 0, count, block, block->sums, x, x8, chunk->x_scales + first);
    const Rows x_rows = states(e, chunk, first);
    for (int64_t begin = 0; begin < e->inner; begin += group) {
        const int64_t end = smaller(begin + group, e->inner), step = int8 ? 64 : 32;
        raise(layer, &x_rows, count, begin, end, 0, 1, block->inner, block->room);
        rows = of_bf16(block->inner, end - begin);
        if (int8) {
            quantize_rows(layer->down.evened ? layer->down.evened + begin : NULL, &rows, 0, count, end - begin, block->narrow, block->scales);
            rows = of_int8(block->narrow, end - begin, block->scales);
        }
        cenote_rows_sums(&layer->down, &rows, count, 0, panels, begin / step, end / step, begin > 0, block->sums, block->room);
    }
    add_norm(&layer->down, &layer->mlp_norm, next, 0, count, block, block->sums, x, x8, chunk->x_scales + first);
}

/* The same for so few rows that threads share the outputs of every linear layer, and the memory. */
static void rest_of_layer_together(
    const Encoder *e, const Layer *layer, const Chunk *chunk, const Block *block, const Block *shared, int64_t count, Team *team
) {
    const int64_t panels = e->hidden / PANEL, group = group_of(e), width = width_of(e), padded = whole(count, 2 * ROWS);
    const Linear *next = &(layer + 1 < e->layers + e->num_layers ? layer + 1 : layer)->qkv; /* after the last nobody reads */
    const int int8 = is_int8(&layer->qkv);
    const int64_t first = panels * team->index / team->count, last = panels * (team->index + 1) / team->count;
    const int64_t from = count * team->index / team->count, until = count * (team->index + 1) / team->count; /* rows */
    int8_t *x8 = int8 ? chunk->x8 : NULL;
    Rows rows = side_by_side(chunk->mixed, width * sizeof(bf16));
    if (int8) { /* so little that each does all of it for itself */
        quantize_rows(layer->out.evened, &rows, 0, count, width, block->narrow, block->scales);
        rows = of_int8(block->narrow, width, block->scales);
    }
    cenote_rows_sums(&layer->out, &rows, count, first, last, 0, steps_of(&layer->out), 0, shared->sums, block->room);
    meet(team);
    add_norm(&layer->out, &layer->mixer_norm, &layer->up, from, until, block, shared->sums, chunk->x, x8, chunk->x_scales);
    meet(team);
    const Rows x_rows = states(e, chunk, 0);
    for (int64_t begin = 0; begin < e->inner; begin += group)
        raise(layer, &x_rows, count, begin, smaller(begin + group, e->inner), team->index, team->count, shared->inner + begin * padded, block->room);
    meet(team);
    for (int64_t begin = 0; begin < e->inner; begin += group) {
        const int64_t end = smaller(begin + group, e->inner), step = int8 ? 64 : 32;
        rows = of_bf16(shared->inner + begin * padded, end - begin);
        if (int8) {
            quantize_rows(layer->down.evened ? layer->down.evened + begin : NULL, &rows, 0, count, end - begin, block->narrow, block->scales);
            rows = of_int8(block->narrow, end - begin, block->scales);
        }
        cenote_rows_sums(&layer->down, &rows, count, first, last, begin / step, end / step, begin > 0, shared->sums, block->room);
    }
    meet(team);
    add_norm(&layer->down, &layer->mlp_norm, next, from, until, block, shared->sums, chunk->x, x8, chunk->x_scales);
    meet(team);
}

static void attend(const Encoder *e, const Chunk *chunk, const int64_t *offsets, int64_t members, const Room *room, const Team *team) {
    const int64_t dim = e->head_dim, query = width_of(e), keys = e->kv_heads * dim, row = query + 2 * keys, group = e->heads / e->kv_heads;
    for (int64_t unit = team->index; unit < members * e->kv_heads; unit += team->count) {
        const int64_t member = unit / e->kv_heads, head = unit % e->kv_heads, start = offsets[member] - offsets[0];
        const bf16 *own = chunk->qkv + start * row;
        const Heads heads = {
            own + head * group * dim, own + query + head * dim, own + query + keys + head * dim,
            chunk->mixed + start * query + head * group * dim, row, row, row, query, dim, group, e->window, e->scale * LOG2_E, e->causal,
        };
        cenote_attend(&heads, offsets[member + 1] - offsets[member], room);
    }
}

/* The sum of what the token, its type and its position contribute, normed. */
static void look_up(const Encoder *e, const Batch *batch, int64_t token, float *sum, uint8_t *own) {
    const Embedding *tables = &e->embedding;
    const int64_t hidden = e->hidden;
    const bf16 *word = tables->tokens + batch->token_ids[token] * hidden;
    const bf16 *type = tables->types ? tables->types + (batch->types ? batch->types[token] : 0) * hidden : NULL;
    const bf16 *position = tables->positions ? tables->positions + (batch->positions[token] + tables->position_offset) * hidden : NULL;
    __m512 total = _mm512_setzero_ps(), squares = total;
    for (int64_t c = 0; c < hidden; c += 16) {
        __m512 value = wide(_mm256_loadu_si256((const void *)(word + c)));
        if (type) value = _mm512_add_ps(value, wide(_mm256_loadu_si256((const void *)(type + c))));
        if (position) value = _mm512_add_ps(value, wide(_mm256_loadu_si256((const void *)(position + c))));
        total = _mm512_add_ps(total, value);
        squares = _mm512_fmadd_ps(value, value, squares);
        _mm512_store_ps(sum + c, value);
    }
    normalize(&tables->norm, sum, hidden, total, squares, own, TILE_BYTES);
}

static void begin_rows(const Encoder *e, const Batch *batch, const Chunk *chunk, const Block *block, int64_t start, int64_t first, int64_t last) {
    const int64_t hidden = e->hidden;
    for (int64_t row = first; row < last; row++) {
        uint8_t *own = row_in_tiles(chunk->x, row, hidden * sizeof(bf16));
        if (batch->rows == NULL) look_up(e, batch, start + row, block->line, own);
        else
            for (int64_t c = 0; c < hidden; c += 32)
                _mm512_store_si512(own + c / 32 * TILE_BYTES, _mm512_loadu_si512(batch->rows + (start + row) * hidden + c));
    }
    const Rows rows = of_bf16(chunk->x, hidden);
    if (is_int8(&e->layers->qkv)) quantize_rows(e->layers->qkv.evened, &rows, first, last, hidden, chunk->x8, chunk->x_scales);
}

static void end_rows(const Encoder *e, const Batch *batch, const Chunk *chunk, int64_t start, int64_t first, int64_t last) {
    const int64_t hidden = e->hidden;
    for (int64_t row = first; row < last; row++) {
        const uint8_t *own = row_in_tiles(chunk->x, row, hidden * sizeof(bf16));
        for (int64_t c = 0; c < hidden; c += 32)
            _mm512_storeu_si512(batch->out + (start + row) * hidden + c, _mm512_load_si512(own + c / 32 * TILE_BYTES));
    }
}

static void encode_chunk(
    const Encoder *e, const Batch *batch, const int64_t *offsets, int64_t members, const Chunk *chunk, const Block *block,
    const Block *shared, const Room *room, Team *team
) {
    const int64_t rows = offsets[members] - offsets[0], panels = panels_of(&e->layers->qkv);
    const int64_t at_once = smaller(rows_at_once(e), whole((rows + team->count - 1) / team->count, 2 * ROWS));
    const int64_t row_bytes = e->layers->qkv.outputs * sizeof(bf16), stride = team->count * at_once, mine = team->index * at_once;
    const int by_columns = team->count > 1 && rows < 2 * ROWS * team->count;
    for (int64_t first = mine; first < rows; first += stride) begin_rows(e, batch, chunk, block, offsets[0], first, smaller(rows, first + at_once));
    if (by_columns) meet(team);
    for (const Layer *layer = e->layers; layer < e->layers + e->num_layers; layer++) {
        if (by_columns) {
            const int64_t from = panels * team->index / team->count, until = panels * (team->index + 1) / team->count;
            const Rows x = states(e, chunk, 0);
            const Rows out = side_by_side(chunk->qkv + from * PANEL, row_bytes);
            cenote_rows_linear(&layer->qkv, &x, rows, from, until, &out, block->room);
        } else
            for (int64_t first = mine; first < rows; first += stride) {
                const Rows x = states(e, chunk, first);
                const Rows out = side_by_side((uint8_t *)chunk->qkv + first * row_bytes, row_bytes);
                cenote_rows_linear(&layer->qkv, &x, smaller(at_once, rows - first), 0, panels, &out, block->room);
            }
        meet(team);
        attend(e, chunk, offsets, members, room, team);
        meet(team);
        if (by_columns) rest_of_layer_together(e, layer, chunk, block, shared, rows, team);
        else
            for (int64_t first = mine; first < rows; first += stride) rest_of_layer(e, layer, chunk, block, first, smaller(at_once, rows - first));
    }
    for (int64_t first = mine; first < rows; first += stride) end_rows(e, batch, chunk, offsets[0], first, smaller(rows, first + at_once));
    meet(team);
}

static Chunk take_chunk(const Encoder *e, int64_t rows, uint8_t **memory) {
    const int64_t padded = whole(rows, 2 * ROWS);
    Chunk chunk;
    chunk.x = part_of(memory, padded * e->hidden * sizeof(bf16));
    chunk.qkv = part_of(memory, padded * e->layers->qkv.outputs * sizeof(bf16));
    chunk.mixed = part_of(memory, padded * width_of(e) * sizeof(bf16));
    chunk.x8 = part_of(memory, is_int8(&e->layers->qkv) ? padded * e->hidden : 0);
    chunk.x_scales = part_of(memory, padded * sizeof(float));
    return chunk;
}

static Block take_block(const Encoder *e, int64_t rows, int64_t inner, uint8_t **memory) {
    const int64_t padded = whole(rows, 2 * ROWS);
    Block block;
    block.sums = part_of(memory, padded * e->hidden * sizeof(float));
    block.room = part_of(memory, room_bytes(padded));
    block.inner = part_of(memory, padded * inner * sizeof(bf16));
    block.narrow = part_of(memory, is_int8(&e->layers->qkv) ? padded * larger(inner, width_of(e)) : 0);
    block.scales = part_of(memory, padded * sizeof(float));
    block.line = part_of(memory, e->hidden * sizeof(float));
    return block;
}

static int out_of_range(const Encoder *e, const Batch *batch, int64_t tokens) {
    const Embedding *tables = &e->embedding;
    const uint64_t words = tables->num_tokens, places = tables->num_positions, kinds = tables->num_types;
    int found = 0;
    for (int64_t token = 0; token < tokens; token++) {
        found |= (uint64_t)batch->token_ids[token] >= words;
        if (tables->positions) found |= (uint64_t)(batch->positions[token] + tables->position_offset) >= places;
        if (tables->types && batch->types) found |= (uint64_t)batch->types[token] >= kinds;
    }
    return found;
}

/* offsets: where each of `size` sequences starts, and the end. Returns 0; 1: there was no memory to work in; 2: an id that no
 * table has. Nothing is written then. */
int cenote_encode(const Encoder *e, const Batch *batch, const int64_t *offsets, int64_t size, int64_t threads) {
    const int64_t tokens = offsets[size], at_once = rows_at_once(e);
    if (tokens == 0) return 0;
    if (batch->rows == NULL && out_of_range(e, batch, tokens)) return 2;
    int64_t *starts = malloc((size + 1) * sizeof(int64_t)), count = 0, longest = 0, most = 0, next = 0, failed = 0, arrived = 0;
    if (starts == NULL) return 1;
    /* several chunks for each thread, so that they end together */
    const int64_t wanted = larger(2 * ROWS, smaller(at_once, tokens / (4 * threads)));
    for (int64_t member = 0; member < size; member++) {
        longest = larger(longest, offsets[member + 1] - offsets[member]);
        if (member == 0 || offsets[member + 1] - offsets[starts[count - 1]] > wanted) starts[count++] = member;
    }
    starts[count] = size;
    for (int64_t i = 0; i < count; i++) most = larger(most, offsets[starts[i + 1]] - offsets[starts[i]]);
    const int together = count < threads;
    uint8_t *nowhere = NULL, *common = NULL;
    if (together) {
        take_chunk(e, most, &nowhere);
        take_block(e, smaller(most, 2 * ROWS * threads), e->inner, &nowhere);
        common = cenote_memory(SHARED, (size_t)nowhere);
        failed = common == NULL;
    }
#pragma omp parallel num_threads(threads)
    {
        uint8_t *nothing = NULL;
        if (!together) take_chunk(e, most, &nothing);
        take_block(e, smaller(most, at_once), group_of(e), &nothing);
        uint8_t *memory = cenote_memory(OWN, (size_t)nothing + cenote_room_bytes(longest, e->head_dim)), *place = common;
        if (memory == NULL) __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
#pragma omp barrier
        if (!failed) {
            Team team = {0, 1, 0, &arrived};
            Block shared = {0};
            Chunk chunk;
            if (together) {
                team.index = omp_get_thread_num(), team.count = omp_get_num_threads();
                chunk = take_chunk(e, most, &place);
                shared = take_block(e, smaller(most, 2 * ROWS * threads), e->inner, &place);
            } else chunk = take_chunk(e, most, &memory);
            const Block block = take_block(e, smaller(most, at_once), group_of(e), &memory);
            const Room room = cenote_room(memory, longest, e->head_dim);
            const unsigned before = enter_tiles();
            for (int64_t i = 0; i < count; i++) {
                if (!together && (i = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) >= count) break;
                encode_chunk(e, batch, offsets + starts[i], starts[i + 1] - starts[i], &chunk, &block, &shared, &room, &team);
            }
            leave_tiles(before);
        }
    }
    free(starts);
    return failed;
}
