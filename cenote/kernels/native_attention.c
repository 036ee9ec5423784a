/* Attention over packed sequences in bfloat16, on the AMX tiles of recent x86 processors.
 *
 * One unit of work is one sequence and one head of keys. Keys meet 16 queries at a time, so that in the products a row is a
 * key and a column a query: the softmax of 16 queries then runs in the lanes of a vector, over exactly the keys there are.
 * Its weights, in pairs of keys, are turned around once to meet the values.
 */
#include "native_attention.h"

static inline __m512i dims_of(const bf16 *row, int64_t dim, int64_t head_dim) {
    return _mm512_maskz_loadu_epi16(those_of(head_dim - dim), row + dim);
}

/* Keys as they are, in tiles of 16 keys and 32 dimensions; here and below, zeros after the last dimension. */
static void pack_keys(const bf16 *keys, int64_t stride, int64_t length, int64_t head_dim, bf16 *out) {
    for (int64_t first = 0; first < length; first += ROWS)
        for (int64_t dim = 0; dim < head_dim; dim += STEP, out += TILE_BYTES / sizeof(bf16))
            for (int64_t row = 0; row < ROWS; row++) /* past the end the last one again: nobody looks at what comes of it */
                _mm512_store_si512(out + row * STEP, dims_of(keys + smaller(first + row, length - 1) * stride, dim, head_dim));
}

static void pack_queries(const bf16 *queries, int64_t stride, int64_t count, int64_t head_dim, uint32_t *out) {
    for (int64_t dim = 0; dim < head_dim; dim += STEP, out += TILE_WORDS) {
        __m512i rows[16];
        for (int64_t row = 0; row < ROWS; row++) rows[row] = dims_of(queries + smaller(row, count - 1) * stride, dim, head_dim);
        transpose(rows, out);
    }
}

/* Values in tiles of 32 keys, two by two, and 16 dimensions; zeros after the last key. */
static void pack_values(const bf16 *values, int64_t stride, int64_t length, int64_t padded, int64_t head_dim, uint32_t *out) {
    for (int64_t first = 0; first < padded; first += STEP)
        for (int64_t dim = 0; dim < whole(head_dim, STEP); dim += 16, out += TILE_WORDS)
            for (int64_t pair = 0; pair < 16; pair++) {
                int64_t key = first + 2 * pair;
                const __m256i none = _mm256_setzero_si256();
                const __mmask16 dims = those_of(head_dim - dim);
                __m256i even = key < length ? _mm256_maskz_loadu_epi16(dims, values + key * stride + dim) : none;
                __m256i odd = key + 1 < length ? _mm256_maskz_loadu_epi16(dims, values + (key + 1) * stride + dim) : none;
                __m512i words = _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
                _mm512_store_si512(out + 16 * pair, words);
            }
}

/* scores[key][query], for the keys from `begin` to `end`. */
static void compare(const Room *room, const uint32_t *queries, int64_t head_dim, int64_t begin, int64_t end, float *scores) {
    const int64_t steps = head_dim / STEP;
    for (int64_t key = begin; key < end; key += 2 * ROWS) {
        const bf16 *tile = room->keys + key * head_dim;
        _tile_zero(0);
        _tile_zero(1);
        for (int64_t step = 0; step < steps; step++, tile += TILE_BYTES / sizeof(bf16)) {
            _tile_loadd(2, queries + step * TILE_WORDS, 64);
            _tile_loadd(3, tile, 64);
            _tile_loadd(4, tile + ROWS * head_dim, 64);
            _tile_dpbf16ps(0, 3, 2);
            _tile_dpbf16ps(1, 4, 2);
        }
        _tile_stored(0, scores + key * ROWS, 64);
        _tile_stored(1, scores + (key + ROWS) * ROWS, 64);
    }
}

/* Which keys 16 queries see: query i those from low[i] to high[i]; all of them those from `all_low` to `all_high`. */
typedef struct {
    int64_t begin, end, seen, all_low, all_high; /* `begin` and `end` in whole steps, `seen` the end of what any of them sees */
    __m512i low, high;
} Sight;

static Sight sight(int64_t first, int64_t count, int64_t length, int causal, int64_t window) {
    const int64_t last = first + count - 1, seen = causal ? last + 1 : smaller(length, last + window + 1);
    const __m512i place = _mm512_add_epi32(_mm512_set1_epi32(first), _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
    const __m512i reach = _mm512_set1_epi32(smaller(window, length));
    __m512i high = _mm512_add_epi32(place, causal ? _mm512_set1_epi32(1) : _mm512_add_epi32(reach, _mm512_set1_epi32(1)));
    return (Sight){
        .begin = larger(0, first - window) / STEP * STEP,
        .end = whole(seen, STEP),
        .seen = seen,
        .all_low = larger(0, first + ROWS - 1 - window),
        .all_high = causal ? first + 1 : smaller(length, first + window + 1),
        .low = _mm512_sub_epi32(place, reach),
        .high = _mm512_min_epi32(high, _mm512_set1_epi32(length)),
    };
}

static inline __mmask16 seeing(const Sight *sight, int64_t key) {
    const __m512i place = _mm512_set1_epi32(key);
    return _mm512_cmpge_epi32_mask(place, sight->low) & _mm512_cmplt_epi32_mask(place, sight->high);
}

/* Weights of all keys in sight as tiles of 16 queries and 32 keys; returns what one unit of weight is worth. */
static __m512 softmax(const float *scores, const Sight *sight, float scale, bf16 *weights) {
    const __m512 smallest = _mm512_set1_ps(-3.4e38f), factor = _mm512_set1_ps(scale);
    const __m512i pairs = _mm512_set_epi16(
        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0
    );
    __m512 most = smallest, more = smallest, total = _mm512_setzero_ps(), rest = _mm512_setzero_ps();
    for (int64_t key = sight->begin; key < sight->seen; key += 2) {
        if (key >= sight->all_low && key + 1 < sight->all_high) {
            most = _mm512_max_ps(most, _mm512_load_ps(scores + key * ROWS));
            more = _mm512_max_ps(more, _mm512_load_ps(scores + (key + 1) * ROWS));
        } else {
            most = _mm512_mask_max_ps(most, seeing(sight, key), most, _mm512_load_ps(scores + key * ROWS));
            more = _mm512_mask_max_ps(more, seeing(sight, key + 1), more, _mm512_load_ps(scores + (key + 1) * ROWS));
        }
    }
    const __m512 shift = _mm512_mul_ps(_mm512_max_ps(most, more), factor);
    for (int64_t first = sight->begin; first < sight->end; first += STEP, weights += TILE_BYTES / sizeof(bf16)) {
        __m512i rows[16];
#pragma GCC unroll 16
        for (int64_t pair = 0; pair < 16; pair++) {
            const int64_t key = first + 2 * pair;
            if (key >= sight->seen) { /* nothing but the rest of a tile */
                rows[pair] = _mm512_setzero_si512();
                continue;
            }
            __m512 even = power_of_two(_mm512_fmsub_ps(_mm512_load_ps(scores + key * ROWS), factor, shift));
            __m512 odd = power_of_two(_mm512_fmsub_ps(_mm512_load_ps(scores + (key + 1) * ROWS), factor, shift));
            if (key < sight->all_low || key + 1 >= sight->all_high) {
                even = _mm512_maskz_mov_ps(seeing(sight, key), even);
                odd = _mm512_maskz_mov_ps(seeing(sight, key + 1), odd);
            }
            total = _mm512_add_ps(total, even);
            rest = _mm512_add_ps(rest, odd);
            rows[pair] = _mm512_permutexvar_epi16(pairs, narrow_both(even, odd));
        }
        transpose(rows, (uint32_t *)weights);
    }
    return _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_add_ps(total, rest));
}

/* mixed[query][dim] = weights x values, for the keys from `begin` to `end`. */
static void mix(const Room *room, const bf16 *weights, int64_t head_dim, int64_t begin, int64_t end, float *mixed) {
    const int64_t columns = head_dim / 16;
    for (int64_t column = 0; column < columns; column += 2) {
        const bf16 *tile = weights;
        _tile_zero(0);
        _tile_zero(1);
        for (int64_t key = begin; key < end; key += STEP, tile += TILE_BYTES / sizeof(bf16)) {
            const uint32_t *values = room->values + (key / STEP * columns + column) * TILE_WORDS;
            _tile_loadd(2, tile, 64);
            _tile_loadd(3, values, 64);
            _tile_loadd(4, values + TILE_WORDS, 64);
            _tile_dpbf16ps(0, 2, 3);
            _tile_dpbf16ps(1, 2, 4);
        }
        _tile_stored(0, mixed + 16 * column, head_dim * sizeof(float));
        _tile_stored(1, mixed + 16 * (column + 1), head_dim * sizeof(float));
    }
}

static void hand_out(const float *mixed, __m512 shares, int64_t count, int64_t head_dim, bf16 *out, int64_t stride) {
    const int64_t padded = whole(head_dim, STEP);
    float share[ROWS];
    _mm512_storeu_ps(share, shares);
    for (int64_t row = 0; row < count; row++, mixed += padded, out += stride) {
        const __m512 unit = _mm512_set1_ps(share[row]);
        for (int64_t dim = 0; dim < head_dim; dim += STEP) {
            const __m512 low = _mm512_mul_ps(_mm512_load_ps(mixed + dim), unit), high = _mm512_mul_ps(_mm512_load_ps(mixed + dim + 16), unit);
            _mm512_mask_storeu_epi16(out + dim, those_of(head_dim - dim), narrow_both(low, high));
        }
    }
}

/* Products of the next 16 queries are made before the softmax of these, so that neither unit waits for the other. */
static void one_head(const Heads *heads, const bf16 *query, bf16 *out, int64_t length, const Room *room) {
    const int64_t head_dim = heads->head_dim, padded = whole(head_dim, STEP), half = whole(length, STEP) * ROWS;
    Sight now, next = sight(0, smaller(ROWS, length), length, heads->causal, heads->window);
    pack_queries(query, heads->query_stride, smaller(ROWS, length), head_dim, room->queries);
    compare(room, room->queries, padded, next.begin, next.end, room->scores);
    for (int64_t first = 0, turn = 0; first < length; first += ROWS, turn ^= 1) {
        const int64_t count = smaller(ROWS, length - first), after = first + ROWS;
        now = next;
        if (after < length) {
            const int64_t more = smaller(ROWS, length - after);
            next = sight(after, more, length, heads->causal, heads->window);
            pack_queries(query + after * heads->query_stride, heads->query_stride, more, head_dim, room->queries);
            compare(room, room->queries, padded, next.begin, next.end, room->scores + (turn ^ 1) * half);
        }
        const __m512 shares = softmax(room->scores + turn * half, &now, heads->scale, room->weights);
        mix(room, room->weights, padded, now.begin, now.end, room->mixed);
        hand_out(room->mixed, shares, count, head_dim, out + first * heads->out_stride, heads->out_stride);
    }
}

size_t cenote_room_bytes(int64_t length, int64_t head_dim) {
    const int64_t padded = whole(length, STEP);
    return 2 * padded * head_dim * sizeof(bf16) + ROWS * head_dim * sizeof(bf16) + 2 * ROWS * padded * sizeof(float) +
           ROWS * padded * sizeof(bf16) + ROWS * head_dim * sizeof(float);
}

Room cenote_room(uint8_t *memory, int64_t length, int64_t head_dim) {
    const int64_t padded = whole(length, STEP);
    Room room = {.keys = (bf16 *)memory};
    room.values = (uint32_t *)(room.keys + padded * head_dim);
    room.queries = room.values + padded * head_dim / 2;
    room.scores = (float *)(room.queries + ROWS * head_dim / 2);
    room.weights = (bf16 *)(room.scores + 2 * ROWS * padded);
    room.mixed = (float *)(room.weights + ROWS * padded);
    return room;
}

void cenote_attend(const Heads *heads, int64_t length, const Room *room) {
    const int64_t head_dim = heads->head_dim;
    if (length == 0) return;
    pack_keys(heads->key, heads->key_stride, length, head_dim, room->keys);
    pack_values(heads->value, heads->value_stride, length, whole(length, STEP), head_dim, room->values);
    for (int64_t head = 0; head < heads->group; head++)
        one_head(heads, heads->query + head * head_dim, heads->out + head * head_dim, length, room);
}

/* query, key, value: [tokens][heads][head_dim] with the given distance between tokens; out likewise, all bfloat16.
 * offsets: where each of `size` sequences starts, and the end. Returns 0, or 1 when there was no memory to work in. */
int cenote_attention(
    const bf16 *query, const bf16 *key, const bf16 *value, bf16 *out,
    int64_t query_stride, int64_t key_stride, int64_t value_stride, int64_t out_stride,
    const int64_t *offsets, int64_t size, int64_t max_length, int64_t heads, int64_t kv_heads, int64_t head_dim,
    int causal, int64_t window, float scale
) {
    const int64_t group = heads / kv_heads, units = size * kv_heads, padded = whole(head_dim, STEP);
    int64_t next = 0; /* units are taken one by one, so that a long sequence holds up nobody */
#pragma omp parallel
    {
        uint8_t *memory = cenote_memory(OWN, cenote_room_bytes(max_length, padded));
        if (memory != NULL) {
            const Room room = cenote_room(memory, max_length, padded);
            const unsigned before = enter_tiles();
            for (int64_t unit; (unit = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < units;) {
                const int64_t start = offsets[unit / kv_heads], kv_head = unit % kv_heads;
                const int64_t place = kv_head * head_dim, first = place * group;
                const Heads own = {
                    query + start * query_stride + first, key + start * key_stride + place,
                    value + start * value_stride + place, out + start * out_stride + first,
                    query_stride, key_stride, value_stride, out_stride, head_dim, group, window,
                    scale * LOG2_E, causal,
                };
                cenote_attend(&own, offsets[unit / kv_heads + 1] - start, &room);
            }
            leave_tiles(before);
        }
    }
    return next < units;
}
