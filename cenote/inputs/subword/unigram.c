/* Unigram tokenization: the split of a word into tokens with the highest sum of scores, found with Viterbi's algorithm. */
#include "unigram.h"

enum { NO_NODE = 0, ROOT = 1, MAX_NODES = 1 << 24, UNREACHED = UINT32_MAX };

static inline uint32_t find_child(const Unigram *unigram, uint32_t node, uint8_t byte) {
    const uint32_t key = node << 8 | byte;
    for (uint64_t slot = hash_integer(key) & unigram->edge_mask;; slot = (slot + 1) & unigram->edge_mask)
        if (unigram->edges[slot].key == key || !unigram->edges[slot].key) return unigram->edges[slot].child;
}

static int allocate_edges(Unigram *unigram, uint64_t size) {
    unigram->edges = calloc(size, sizeof *unigram->edges), unigram->edge_mask = size - 1;
    return unigram->edges != NULL;
}

static void insert_edge(Unigram *unigram, Edge edge) {
    uint64_t slot = hash_integer(edge.key) & unigram->edge_mask;
    while (unigram->edges[slot].key) slot = (slot + 1) & unigram->edge_mask;
    unigram->edges[slot] = edge;
}

static int grow_edges(Unigram *unigram) {
    Edge *old = unigram->edges;
    const uint64_t size = unigram->edge_mask + 1;
    if (!allocate_edges(unigram, 2 * size)) {
        unigram->edges = old, unigram->edge_mask = size - 1;
        return 0;
    }
    for (uint64_t i = 0; i < size; i++)
        if (old[i].key) insert_edge(unigram, old[i]);
    free(old);
    return 1;
}

/* Tokens must not be empty; the last of equal ones counts. An empty span is a token that no text has. Returns 0 if out of
 * memory, or if the vocabulary is too large. */
int init_unigram(Unigram *unigram, const uint8_t *bytes, const uint64_t *ends, const double *scores, uint64_t count) {
    const uint64_t length = count ? ends[count - 1] : 0;
    unigram->scores = malloc((count + 1) * sizeof *scores), unigram->node_ids = malloc((length + 2) * sizeof *unigram->node_ids);
    if (!unigram->scores || !unigram->node_ids || !allocate_edges(unigram, 1 << 16)) return 0;
    memcpy(unigram->scores, scores, count * sizeof *scores);
    unigram->num_nodes = 2;
    for (uint64_t i = 0, at = 0; i < count; i++) {
        uint32_t node = ROOT;
        if (at == ends[i]) continue;
        for (; at < ends[i]; at++) {
            uint32_t child = find_child(unigram, node, bytes[at]);
            if (child == NO_NODE) {
                if (unigram->num_nodes == MAX_NODES) return 0;
                if (2 * (uint64_t)unigram->num_nodes > unigram->edge_mask && !grow_edges(unigram)) return 0;
                child = unigram->num_nodes++;
                unigram->node_ids[child] = -1;
                insert_edge(unigram, (Edge){node << 8 | bytes[at], child});
            }
            node = child;
        }
        unigram->node_ids[node] = (int32_t)i;
    }
    for (int byte = 0; byte < 256; byte++) unigram->root_children[byte] = find_child(unigram, ROOT, (uint8_t)byte);
    return 1;
}

void free_unigram(Unigram *unigram) { free(unigram->edges), free(unigram->node_ids), free(unigram->scores); }

typedef struct {
    double score; /* of the best split of the word up to here */
    uint32_t start; /* of its last token */
    int32_t id;
} BestPath;

static inline void offer(BestPath *path, double score, uint32_t start, int32_t id) {
    if (path->start == UNREACHED || score > path->score) *path = (BestPath){score, start, id};
}

static void find_best_paths(const Unigram *unigram, const uint8_t *word, uint32_t length, BestPath *paths) {
    paths[0].score = 0;
    for (uint32_t i = 1; i <= length; i++) paths[i].start = UNREACHED;
    for (uint32_t at = 0, num_bytes; at < length; at += num_bytes) {
        const double score = paths[at].score;
        int has_char = 0;
        num_bytes = (uint32_t)char_bytes(word[at]);
        uint32_t node = unigram->root_children[word[at]];
        for (uint32_t end = at + 1; node != NO_NODE; end++) {
            const int32_t id = unigram->node_ids[node];
            if (id >= 0) {
                offer(&paths[end], unigram->scores[id] + score, at, id);
                has_char |= end - at == num_bytes;
            }
            if (end == length) break;
            node = find_child(unigram, node, word[end]);
        }
        if (!has_char) offer(&paths[at + num_bytes], unigram->unk_score + score, at, unigram->unk_id);
    }
}

/* Turn the best path around: paths[start] gets the id of the token that starts there, and as `start` the end of the token. */
static void link_tokens(BestPath *paths, uint32_t length) {
    BestPath last = paths[length];
    for (uint32_t end = length; end > 0;) {
        const BestPath before = paths[last.start];
        paths[last.start].start = end, paths[last.start].id = last.id;
        end = last.start, last = before;
    }
}

static int32_t find_token(const Unigram *unigram, const uint8_t *at, const uint8_t *end) {
    uint32_t node = ROOT;
    while (at < end && node != NO_NODE) node = find_child(unigram, node, *at++);
    return node == NO_NODE ? -1 : unigram->node_ids[node];
}

/* Append the ids of unknown characters in a row: one of a token, of their bytes, or unk_id. */
static int32_t *encode_unknown(const Unigram *unigram, const uint8_t *at, const uint8_t *end, int32_t *ids) {
    const int32_t id = find_token(unigram, at, end);
    if (id < 0 && unigram->has_byte_fallback) {
        int32_t *next = ids;
        while (at < end && unigram->byte_ids[*at] >= 0) *next++ = unigram->byte_ids[*at++];
        if (at == end) return next;
    }
    *ids = id < 0 ? unigram->unk_id : id;
    return ids + 1;
}

/* Append the ids of a word, which has at least one byte, and return the new end of `ids`; NULL if out of memory.
 * `ids` has space for one id per byte. */
int32_t *encode_unigram_word(const Unigram *unigram, Workspace *workspace, const uint8_t *word, uint64_t length, int32_t *ids) {
    BestPath *paths = length < UINT32_MAX ? reserve(&workspace->arrays, (length + 1) * sizeof *paths) : NULL;
    if (!paths) return NULL;
    find_best_paths(unigram, word, (uint32_t)length, paths);
    link_tokens(paths, (uint32_t)length);
    for (uint32_t at = 0, end; at < length; at = end) {
        const int32_t id = paths[at].id;
        end = paths[at].start;
        if (id != unigram->unk_id) {
            *ids++ = id;
            continue;
        }
        while (end < length && paths[end].id == id) end = paths[end].start;
        ids = encode_unknown(unigram, word + at, word + end, ids);
    }
    return ids;
}
