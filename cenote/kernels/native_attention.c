/* Attention over packed sequences with AMX: products of bfloat16, of rows that are bfloat16 or float32.
 *
 * One work item is one sequence and one key-value head. Scores are computed for 16 queries at a time as keys x queries, so that
 * a row is a key and a column a query: the softmax of 16 queries then runs in the lanes of a vector, without padded keys.
 * The weights, in pairs of keys, are transposed once for the product with the values.
 */
#include "cpu/compiler.h"
#if KNOWS_AMX
#include "native_attention.h"

static inline const void *element(const void *start, int64_t index, int is_bfloat16) {
    return (const uint8_t *)start + index * (is_bfloat16 ? sizeof(bf16) : sizeof(float));
}

static inline __m512 load_floats(const float *from, int64_t left) { return _mm512_maskz_loadu_ps((__mmask16)tail_mask(left), from); }

/* 32 dimensions of a row as bfloat16; those beyond head_dim are zeros. */
static inline __m512i load_dims(const void *row, int64_t dim, int64_t head_dim, int is_bfloat16) {
    if (is_bfloat16) return _mm512_maskz_loadu_epi16(tail_mask(head_dim - dim), (const bf16 *)row + dim);
    const float *from = (const float *)row + dim;
    return f32x2_to_bf16(load_floats(from, head_dim - dim), load_floats(from + 16, head_dim - dim - 16));
}

/* 16 dimensions. */
static inline __m256i load_half(const void *row, int64_t dim, int64_t head_dim, int is_bfloat16) {
    if (is_bfloat16) return _mm256_maskz_loadu_epi16((__mmask16)tail_mask(head_dim - dim), (const bf16 *)row + dim);
    return f32_to_bf16(load_floats((const float *)row + dim, head_dim - dim));
}

/* Copy keys into tiles of 16 keys and 32 dimensions. Here and below, dimensions are padded with zeros. */
static void pack_keys(const HeadGroup *heads, int64_t length, bf16 *out) {
    const int64_t head_dim = heads->head_dim, stride = heads->key_stride;
    const int is_bfloat16 = heads->is_bfloat16;
    for (int64_t first = 0; first < length; first += TILE_ROWS)
        for (int64_t dim = 0; dim < head_dim; dim += STEP, out += TILE_BYTES / sizeof(bf16))
            for (int64_t row = 0; row < TILE_ROWS; row++) { /* rows after the last key repeat it; their scores are ignored */
                const void *key = element(heads->key, min_i64(first + row, length - 1) * stride, is_bfloat16);
                _mm512_store_si512(out + row * STEP, load_dims(key, dim, head_dim, is_bfloat16));
            }
}

static void pack_queries(const HeadGroup *heads, const void *queries, int64_t count, uint32_t *out) {
    const int64_t head_dim = heads->head_dim, stride = heads->query_stride;
    const int is_bfloat16 = heads->is_bfloat16;
    for (int64_t dim = 0; dim < head_dim; dim += STEP, out += TILE_WORDS) {
        __m512i rows[16];
        for (int64_t row = 0; row < TILE_ROWS; row++)
            rows[row] = load_dims(element(queries, min_i64(row, count - 1) * stride, is_bfloat16), dim, head_dim, is_bfloat16);
        transpose(rows, out);
    }
}

/* Copy values into tiles of 32 keys, interleaved in pairs, and 16 dimensions; keys are padded with zeros. */
static void pack_values(const HeadGroup *heads, int64_t length, uint32_t *out) {
    const int64_t head_dim = heads->head_dim, stride = heads->value_stride;
    const int is_bfloat16 = heads->is_bfloat16;
    for (int64_t first = 0; first < round_up(length, STEP); first += STEP)
        for (int64_t dim = 0; dim < round_up(head_dim, STEP); dim += 16, out += TILE_WORDS)
            for (int64_t pair = 0; pair < 16; pair++) {
                int64_t key = first + 2 * pair;
                const __m256i zero = _mm256_setzero_si256();
                const void *value = element(heads->value, key * stride, is_bfloat16), *next = element(value, stride, is_bfloat16);
                __m256i even = key < length ? load_half(value, dim, head_dim, is_bfloat16) : zero;
                __m256i odd = key + 1 < length ? load_half(next, dim, head_dim, is_bfloat16) : zero;
                __m512i words = _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
                _mm512_store_si512(out + 16 * pair, words);
            }
}

/* scores[key][query] = keys x queries, for the keys from `begin` to `end`. */
static void qk_scores(
    const AttentionScratch *scratch, const uint32_t *queries, int64_t head_dim, int64_t begin, int64_t end, float *scores
) {
    const int64_t steps = head_dim / STEP;
    for (int64_t key = begin; key < end; key += 2 * TILE_ROWS) {
        const bf16 *tile = scratch->keys + key * head_dim;
        _tile_zero(0);
        _tile_zero(1);
        for (int64_t step = 0; step < steps; step++, tile += TILE_BYTES / sizeof(bf16)) {
            _tile_loadd(2, queries + step * TILE_WORDS, 64);
            _tile_loadd(3, tile, 64);
            _tile_loadd(4, tile + TILE_ROWS * head_dim, 64);
            _tile_dpbf16ps(0, 3, 2);
            _tile_dpbf16ps(1, 4, 2);
        }
        _tile_stored(0, scores + key * TILE_ROWS, 64);
        _tile_stored(1, scores + (key + TILE_ROWS) * TILE_ROWS, 64);
    }
}

/* The keys that a block of 16 queries attends to: query i from low[i] to high[i], all of them from common_low to common_high. */
typedef struct {
    int64_t begin, end, exact_end; /* of all queries together; `begin` and `end` are multiples of STEP */
    int64_t common_low, common_high;
    __m512i low, high;
} KeyRange;

static KeyRange key_range(int64_t first, int64_t count, int64_t length, int causal, int64_t window) {
    const int64_t last = first + count - 1, exact_end = causal ? last + 1 : min_i64(length, last + window + 1);
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i position = _mm512_add_epi32(_mm512_set1_epi32(first), lanes);
    const __m512i reach = _mm512_set1_epi32(min_i64(window, length));
    __m512i high = _mm512_add_epi32(position, causal ? _mm512_set1_epi32(1) : _mm512_add_epi32(reach, _mm512_set1_epi32(1)));
    return (KeyRange){
        .begin = max_i64(0, first - window) / STEP * STEP,
        .end = round_up(exact_end, STEP),
        .exact_end = exact_end,
        .common_low = max_i64(0, first + TILE_ROWS - 1 - window),
        .common_high = causal ? first + 1 : min_i64(length, first + window + 1),
        .low = _mm512_sub_epi32(position, reach),
        .high = _mm512_min_epi32(high, _mm512_set1_epi32(length)),
    };
}

static inline __mmask16 key_mask(const KeyRange *key_range, int64_t key) {
    const __m512i position = _mm512_set1_epi32(key);
    return _mm512_cmpge_epi32_mask(position, key_range->low) & _mm512_cmplt_epi32_mask(position, key_range->high);
}

/* Write exp2(scores * scale - max) as tiles of 16 queries and 32 keys; return one over the sum of the weights of each query. */
static __m512 softmax(const float *scores, const KeyRange *key_range, float scale, bf16 *weights) {
    const __m512 smallest = _mm512_set1_ps(-3.4e38f), factor = _mm512_set1_ps(scale);
    const __m512i pairs = _mm512_set_epi16(
        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0
    );
    __m512 max_even = smallest, max_odd = smallest, sum_even = _mm512_setzero_ps(), sum_odd = _mm512_setzero_ps();
    for (int64_t key = key_range->begin; key < key_range->exact_end; key += 2) {
        if (key >= key_range->common_low && key + 1 < key_range->common_high) {
            max_even = _mm512_max_ps(max_even, _mm512_load_ps(scores + key * TILE_ROWS));
            max_odd = _mm512_max_ps(max_odd, _mm512_load_ps(scores + (key + 1) * TILE_ROWS));
        } else {
            max_even = _mm512_mask_max_ps(max_even, key_mask(key_range, key), max_even, _mm512_load_ps(scores + key * TILE_ROWS));
            max_odd = _mm512_mask_max_ps(max_odd, key_mask(key_range, key + 1), max_odd, _mm512_load_ps(scores + (key + 1) * TILE_ROWS));
        }
    }
    const __m512 max_score = _mm512_mul_ps(_mm512_max_ps(max_even, max_odd), factor);
    for (int64_t first = key_range->begin; first < key_range->end; first += STEP, weights += TILE_BYTES / sizeof(bf16)) {
        __m512i rows[16];
#pragma GCC unroll 16
        for (int64_t pair = 0; pair < 16; pair++) {
            const int64_t key = first + 2 * pair;
            if (key >= key_range->exact_end) { /* padding of the last tile */
                rows[pair] = _mm512_setzero_si512();
                continue;
            }
            __m512 even = exp2_ps(_mm512_fmsub_ps(_mm512_load_ps(scores + key * TILE_ROWS), factor, max_score));
            __m512 odd = exp2_ps(_mm512_fmsub_ps(_mm512_load_ps(scores + (key + 1) * TILE_ROWS), factor, max_score));
            if (key < key_range->common_low || key + 1 >= key_range->common_high) {
                even = _mm512_maskz_mov_ps(key_mask(key_range, key), even);
                odd = _mm512_maskz_mov_ps(key_mask(key_range, key + 1), odd);
            }
            sum_even = _mm512_add_ps(sum_even, even);
            sum_odd = _mm512_add_ps(sum_odd, odd);
            rows[pair] = _mm512_permutexvar_epi16(pairs, f32x2_to_bf16(even, odd));
        }
        transpose(rows, (uint32_t *)weights);
    }
    return _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_add_ps(sum_even, sum_odd));
}

/* attn_out[query][dim] = weights x values, for the keys from `begin` to `end`. */
static void pv_product(
    const AttentionScratch *scratch, const bf16 *weights, int64_t head_dim, int64_t begin, int64_t end, float *attn_out
) {
    const int64_t columns = head_dim / 16;
    for (int64_t column = 0; column < columns; column += 2) {
        const bf16 *tile = weights;
        _tile_zero(0);
        _tile_zero(1);
        for (int64_t key = begin; key < end; key += STEP, tile += TILE_BYTES / sizeof(bf16)) {
            const uint32_t *values = scratch->values + (key / STEP * columns + column) * TILE_WORDS;
            _tile_loadd(2, tile, 64);
            _tile_loadd(3, values, 64);
            _tile_loadd(4, values + TILE_WORDS, 64);
            _tile_dpbf16ps(0, 2, 3);
            _tile_dpbf16ps(1, 2, 4);
        }
        _tile_stored(0, attn_out + 16 * column, head_dim * sizeof(float));
        _tile_stored(1, attn_out + 16 * (column + 1), head_dim * sizeof(float));
    }
}

static void store_output(const HeadGroup *heads, const float *attn_out, __m512 inv_sums, int64_t count, void *out) {
    const int64_t head_dim = heads->head_dim, padded = round_up(head_dim, STEP);
    float factors[TILE_ROWS];
    _mm512_storeu_ps(factors, inv_sums);
    for (int64_t row = 0; row < count; row++, attn_out += padded) {
        void *to = (void *)element(out, row * heads->out_stride, heads->is_bfloat16);
        const __m512 factor = _mm512_set1_ps(factors[row]);
        for (int64_t dim = 0; dim < head_dim; dim += STEP) {
            const __m512 low = _mm512_mul_ps(_mm512_load_ps(attn_out + dim), factor);
            const __m512 high = _mm512_mul_ps(_mm512_load_ps(attn_out + dim + 16), factor);
            const __mmask32 dims = tail_mask(head_dim - dim);
            if (heads->is_bfloat16) _mm512_mask_storeu_epi16((bf16 *)to + dim, dims, f32x2_to_bf16(low, high));
            else {
                _mm512_mask_storeu_ps((float *)to + dim, (__mmask16)dims, low);
                _mm512_mask_storeu_ps((float *)to + dim + 16, (__mmask16)(dims >> 16), high);
            }
        }
    }
}

/* Compute the scores of the next 16 queries before the softmax of the current ones, so that tile and vector units overlap. */
static void attend_head(const HeadGroup *heads, int64_t head, int64_t length, const AttentionScratch *scratch) {
    const int64_t padded = round_up(heads->head_dim, STEP), half = round_up(length, STEP) * TILE_ROWS;
    const void *query = element(heads->query, head * heads->head_dim, heads->is_bfloat16);
    void *out = (void *)element(heads->out, head * heads->head_dim, heads->is_bfloat16);
    KeyRange current, next = key_range(0, min_i64(TILE_ROWS, length), length, heads->causal, heads->window);
    pack_queries(heads, query, min_i64(TILE_ROWS, length), scratch->queries);
    qk_scores(scratch, scratch->queries, padded, next.begin, next.end, scratch->scores);
    for (int64_t first = 0, parity = 0; first < length; first += TILE_ROWS, parity ^= 1) {
        const int64_t count = min_i64(TILE_ROWS, length - first), after = first + TILE_ROWS;
        current = next;
        if (after < length) {
            const int64_t next_count = min_i64(TILE_ROWS, length - after);
            next = key_range(after, next_count, length, heads->causal, heads->window);
            pack_queries(heads, element(query, after * heads->query_stride, heads->is_bfloat16), next_count, scratch->queries);
            qk_scores(scratch, scratch->queries, padded, next.begin, next.end, scratch->scores + (parity ^ 1) * half);
        }
        const __m512 inv_sums = softmax(scratch->scores + parity * half, &current, heads->scale * LOG2_E, scratch->weights);
        pv_product(scratch, scratch->weights, padded, current.begin, current.end, scratch->attn_out);
        store_output(heads, scratch->attn_out, inv_sums, count, (void *)element(out, first * heads->out_stride, heads->is_bfloat16));
    }
}

size_t cenote_attention_scratch_bytes(int64_t length, int64_t head_dim) {
    const int64_t padded = round_up(length, STEP);
    return 2 * padded * head_dim * sizeof(bf16) + TILE_ROWS * head_dim * sizeof(bf16) + 2 * TILE_ROWS * padded * sizeof(float) +
           TILE_ROWS * padded * sizeof(bf16) + TILE_ROWS * head_dim * sizeof(float);
}

AttentionScratch cenote_attention_scratch(uint8_t *memory, int64_t length, int64_t head_dim) {
    const int64_t padded = round_up(length, STEP);
    AttentionScratch scratch = {.keys = (bf16 *)memory};
    scratch.values = (uint32_t *)(scratch.keys + padded * head_dim);
    scratch.queries = scratch.values + padded * head_dim / 2;
    scratch.scores = (float *)(scratch.queries + TILE_ROWS * head_dim / 2);
    scratch.weights = (bf16 *)(scratch.scores + 2 * TILE_ROWS * padded);
    scratch.attn_out = (float *)(scratch.weights + TILE_ROWS * padded);
    return scratch;
}

void cenote_attend_sequence(const HeadGroup *heads, int64_t length, const AttentionScratch *scratch) {
    if (length == 0) return;
    pack_keys(heads, length, scratch->keys);
    pack_values(heads, length, scratch->values);
    for (int64_t head = 0; head < heads->group; head++) attend_head(heads, head, length, scratch);
}

/* For the level `amx`, whose threads have configured their tiles: see TileKernels. */
size_t cenote_amx_attention_bytes(int64_t length, int64_t head_dim) { return cenote_attention_scratch_bytes(length, round_up(head_dim, STEP)); }

void cenote_amx_attend(const HeadGroup *heads, int64_t length, uint8_t *memory) {
    const AttentionScratch scratch = cenote_attention_scratch(memory, length, round_up(heads->head_dim, STEP));
    cenote_attend_sequence(heads, length, &scratch);
}

/* query, key, value, out: [tokens][heads][head_dim] in bfloat16, with token strides in elements. offsets: [size + 1] cumulative
 * sequence lengths. Returns 0, or 1 if no scratch memory could be allocated. */
int cenote_attention(
    const bf16 *query, const bf16 *key, const bf16 *value, bf16 *out,
    int64_t query_stride, int64_t key_stride, int64_t value_stride, int64_t out_stride,
    const int64_t *offsets, int64_t size, int64_t max_length, int64_t heads, int64_t kv_heads, int64_t head_dim,
    int causal, int64_t window, float scale
) {
    const int64_t group = heads / kv_heads, units = size * kv_heads, padded = round_up(head_dim, STEP);
    int64_t next = 0; /* threads take units one by one, so that a long sequence does not delay the others */
#pragma omp parallel
    {
        uint8_t *memory = cenote_scratch(THREAD_SCRATCH, cenote_attention_scratch_bytes(max_length, padded));
        if (memory != NULL) {
            const AttentionScratch scratch = cenote_attention_scratch(memory, max_length, padded);
            const unsigned before = amx_begin();
            for (int64_t unit; (unit = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < units;) {
                const int64_t start = offsets[unit / kv_heads], kv_head = unit % kv_heads;
                const int64_t kv_column = kv_head * head_dim, column = kv_column * group;
                const HeadGroup head_group = {
                    .query = query + start * query_stride + column, .key = key + start * key_stride + kv_column,
                    .value = value + start * value_stride + kv_column, .out = out + start * out_stride + column,
                    .query_stride = query_stride, .key_stride = key_stride, .value_stride = value_stride, .out_stride = out_stride,
                    .head_dim = head_dim, .group = group, .window = window, .scale = scale, .causal = causal, .is_bfloat16 = 1,
                };
                cenote_attend_sequence(&head_group, offsets[unit / kv_heads + 1] - start, &scratch);
            }
            amx_end(before);
        }
    }
    return next < units;
}
#endif
