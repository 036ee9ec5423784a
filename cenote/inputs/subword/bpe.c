/* Byte-pair encoding: merge the pair of lowest rank, the leftmost first, until no pair can be merged. */
#include "bpe.h"

enum { NO_MERGE = UINT32_MAX, MAX_SCANNED_SYMBOLS = 48 }; /* longer words use a heap */

typedef struct {
    uint32_t rank;
    int32_t id;
} Merged;

static inline Merged find_merge(const Bpe *bpe, int32_t left, int32_t right) {
    const uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (uint64_t slot = hash_integer(pair) & bpe->merge_mask;; slot = (slot + 1) & bpe->merge_mask) {
        const Merge *merge = &bpe->merges[slot];
        if (merge->pair == pair || merge->rank == NO_MERGE) return (Merged){merge->rank, merge->id};
    }
}

static inline int32_t find_char(const Bpe *bpe, uint32_t code) {
    for (uint64_t slot = hash_integer(code) & bpe->char_mask;; slot = (slot + 1) & bpe->char_mask)
        if (bpe->char_ids[slot].code == code || bpe->char_ids[slot].code == UINT32_MAX) return bpe->char_ids[slot].id;
}

int init_bpe(Bpe *bpe, const int32_t *merges, uint64_t num_merges, const uint32_t *codes, const int32_t *char_ids, uint64_t num_chars) {
    uint64_t size = 1024, num_slots = 1024;
    while (size < 2 * num_merges) size *= 2;
    while (num_slots < 2 * num_chars) num_slots *= 2;
    bpe->merges = malloc(size * sizeof *bpe->merges), bpe->merge_mask = size - 1;
    bpe->char_ids = malloc(num_slots * sizeof *bpe->char_ids), bpe->char_mask = num_slots - 1;
    if (!bpe->merges || !bpe->char_ids) return 0;
    for (uint64_t i = 0; i < size; i++) bpe->merges[i] = (Merge){UINT64_MAX, NO_MERGE, -1};
    for (uint64_t i = 0; i < num_slots; i++) bpe->char_ids[i] = (CharId){UINT32_MAX, -1};
    for (uint64_t rank = 0; rank < num_merges; rank++, merges += 3) {
        const uint64_t pair = (uint64_t)(uint32_t)merges[0] << 32 | (uint32_t)merges[1];
        uint64_t slot = hash_integer(pair) & bpe->merge_mask;
        while (bpe->merges[slot].rank != NO_MERGE && bpe->merges[slot].pair != pair) slot = (slot + 1) & bpe->merge_mask;
        bpe->merges[slot] = (Merge){pair, (uint32_t)rank, merges[2]}; /* the last of equal merges counts */
    }
    for (uint64_t i = 0; i < num_chars; i++) {
        uint64_t slot = hash_integer(codes[i]) & bpe->char_mask;
        while (bpe->char_ids[slot].code != UINT32_MAX) slot = (slot + 1) & bpe->char_mask;
        bpe->char_ids[slot] = (CharId){codes[i], char_ids[i]};
    }
    return 1;
}

void free_bpe(Bpe *bpe) {
    free(bpe->merges), free(bpe->char_ids), free_pieces(&bpe->words);
}

/* Store the ids of the bytes or characters of a word and return their number; -1 if one has no id. */
static int64_t split_word(const Bpe *bpe, const uint8_t *word, uint64_t length, int32_t *ids) {
    const uint8_t *at = word, *end = word + length;
    int32_t *next = ids;
    while (at < end) {
        const uint8_t *start = at;
        if (!bpe->is_byte_level) {
            const int32_t id = find_char(bpe, code_point(&at));
            if (id >= 0) {
                *next++ = id;
                continue;
            }
        } else at++;
        for (; start < at; start++)
            if ((*next++ = bpe->byte_ids[*start]) < 0) return -1;
    }
    return next - ids;
}

static uint64_t merge_by_scan(const Bpe *bpe, int32_t *ids, uint64_t count) {
    Merged merged[MAX_SCANNED_SYMBOLS];
    for (uint64_t i = 0; i + 1 < count; i++) merged[i] = find_merge(bpe, ids[i], ids[i + 1]);
    for (; count > 1; count--) {
        uint64_t best = 0;
        for (uint64_t i = 1; i + 1 < count; i++)
            if (merged[i].rank < merged[best].rank) best = i;
        if (merged[best].rank == NO_MERGE) break;
        ids[best] = merged[best].id;
        memmove(ids + best + 1, ids + best + 2, (count - best - 2) * sizeof *ids);
        if (best + 2 < count) {
            memmove(merged + best, merged + best + 1, (count - best - 2) * sizeof *merged);
            merged[best] = find_merge(bpe, ids[best], ids[best + 1]);
        }
        if (best) merged[best - 1] = find_merge(bpe, ids[best - 1], ids[best]);
    }
    return count;
}

typedef struct {
    uint64_t *items; /* rank << 32 | position */
    uint64_t count;
} Heap;

static void push(Heap *heap, uint64_t item) {
    uint64_t at = heap->count++;
    for (; at && heap->items[(at - 1) / 2] > item; at = (at - 1) / 2) heap->items[at] = heap->items[(at - 1) / 2];
    heap->items[at] = item;
}

static uint64_t pop(Heap *heap) {
    const uint64_t top = heap->items[0], last = heap->items[--heap->count];
    uint64_t at = 0;
    for (uint64_t child; (child = 2 * at + 1) < heap->count; at = child) {
        if (child + 1 < heap->count && heap->items[child + 1] < heap->items[child]) child++;
        if (heap->items[child] >= last) break;
        heap->items[at] = heap->items[child];
    }
    heap->items[at] = last;
    return top;
}

typedef struct {
    int32_t *ids;
    Merged *merged; /* of the pair that starts here */
    uint32_t *next, *previous;
    uint64_t count;
    Heap heap;
} Symbols;

static void update_pair(const Bpe *bpe, Symbols *symbols, uint32_t left) {
    const uint32_t right = symbols->next[left];
    symbols->merged[left].rank = NO_MERGE;
    if (right >= symbols->count) return;
    symbols->merged[left] = find_merge(bpe, symbols->ids[left], symbols->ids[right]);
    if (symbols->merged[left].rank != NO_MERGE) push(&symbols->heap, (uint64_t)symbols->merged[left].rank << 32 | left);
}

/* Returns the new number of ids; -1 if out of memory. */
static int64_t merge_by_heap(const Bpe *bpe, Workspace *workspace, int32_t *ids, uint64_t count) {
    /* every merge removes a symbol and adds at most two pairs */
    uint8_t *memory = reserve(&workspace->arrays, count * (3 * sizeof(uint64_t) + sizeof(Merged) + 2 * sizeof(uint32_t)));
    if (!memory || count >= UINT32_MAX) return -1;
    Symbols symbols = {.ids = ids, .count = count, .heap = {(uint64_t *)memory, 0}};
    symbols.merged = (Merged *)(symbols.heap.items + 3 * count);
    symbols.next = (uint32_t *)(symbols.merged + count), symbols.previous = symbols.next + count;
    for (uint64_t i = 0; i < count; i++) symbols.next[i] = (uint32_t)(i + 1), symbols.previous[i] = (uint32_t)(i - 1);
    for (uint64_t i = 0; i < count; i++) update_pair(bpe, &symbols, (uint32_t)i);
    while (symbols.heap.count) {
        const uint64_t top = pop(&symbols.heap);
        const uint32_t left = (uint32_t)top;
        if (symbols.merged[left].rank != top >> 32) continue; /* the pair has changed */
        const uint32_t right = symbols.next[left];
        ids[left] = symbols.merged[left].id;
        symbols.next[left] = symbols.next[right];
        if (symbols.next[right] < count) symbols.previous[symbols.next[right]] = left;
        symbols.merged[right].rank = NO_MERGE;
        update_pair(bpe, &symbols, left);
        if (left) update_pair(bpe, &symbols, symbols.previous[left]);
    }
    uint64_t kept = 0;
    for (uint64_t i = 0; i < count; i = symbols.next[i]) ids[kept++] = ids[i];
    return (int64_t)kept;
}

/* Append the ids of a word, which has at least one byte, and return the new end of `ids`; NULL if the library must encode
 * the text. `ids` has space for one id per byte. */
int32_t *encode_bpe_word(const Bpe *bpe, Workspace *workspace, const uint8_t *word, uint64_t length, int32_t *ids) {
    if (bpe->matches_words) {
        const PieceSlot *slot = &bpe->words.slots[find_piece(&bpe->words, word, length, 0)];
        if (slot->key) {
            *ids = slot->id;
            return ids + 1;
        }
    }
    int64_t count = split_word(bpe, word, length, ids);
    if (count > MAX_SCANNED_SYMBOLS) count = merge_by_heap(bpe, workspace, ids, (uint64_t)count);
    else if (count > 1) count = (int64_t)merge_by_scan(bpe, ids, (uint64_t)count);
    return count < 0 ? NULL : ids + count;
}
