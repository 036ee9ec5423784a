/* Search for added tokens, such as special tokens, in a text. */
#ifndef CENOTE_ADDED_TOKENS_H
#define CENOTE_ADDED_TOKENS_H
#include "pieces.h"

typedef struct {
    Pieces tokens;
    uint64_t count, *lengths, num_lengths; /* distinct lengths, the longest first */
    uint8_t start_bytes[256], is_start[256];
    int num_start_bytes;
    uint8_t is_start_pair[8192]; /* one bit for each pair of first bytes */
} AddedTokens;

typedef struct {
    const uint8_t *start, *end;
    int32_t id; /* -1: whether it matches depends on the text around it */
} AddedMatch;

static inline void free_added_tokens(AddedTokens *added) { free_pieces(&added->tokens), free(added->lengths); }

static inline void mark_start_pair(AddedTokens *added, uint8_t first, uint8_t second) {
    added->is_start_pair[first << 5 | second >> 3] |= 1 << (second & 7);
}

static inline void add_length(AddedTokens *added, uint64_t length) {
    uint64_t at = 0;
    while (at < added->num_lengths && added->lengths[at] > length) at++;
    if (at < added->num_lengths && added->lengths[at] == length) return;
    memmove(added->lengths + at + 1, added->lengths + at, (added->num_lengths++ - at) * sizeof length);
    added->lengths[at] = length;
}

/* `ids` may be NULL: then all are 0. No token is empty. Returns 0 if out of memory. */
static inline int copy_added_tokens(AddedTokens *to, const uint8_t *bytes, const uint64_t *ends, const int32_t *ids, uint64_t count) {
    to->lengths = malloc((count + 1) * sizeof *to->lengths), to->count = count;
    if (!to->lengths || !allocate_pieces(&to->tokens, bytes, count ? ends[count - 1] : 0, count)) return 0;
    for (uint64_t i = 0, start = 0; i < count; start = ends[i++]) {
        const uint8_t first = bytes[start];
        add_piece(&to->tokens, start, ends[i] - start, 0, ids ? ids[i] : 0);
        add_length(to, ends[i] - start);
        if (!to->is_start[first]) to->start_bytes[to->num_start_bytes++] = first;
        to->is_start[first] = 1;
        if (ends[i] - start > 1) mark_start_pair(to, first, bytes[start + 1]);
        else
            for (int second = 0; second < 256; second++) mark_start_pair(to, first, (uint8_t)second);
    }
    return 1;
}

/* Find the longest token that begins at `at`. */
static inline int match_added_token(const AddedTokens *added, const uint8_t *at, const uint8_t *end, AddedMatch *match) {
    for (uint64_t i = 0; i < added->num_lengths; i++) {
        if (added->lengths[i] > (uint64_t)(end - at)) continue;
        const PieceSlot *slot = &added->tokens.slots[find_piece(&added->tokens, at, added->lengths[i], 0)];
        if (!slot->key) continue;
        *match = (AddedMatch){at, at + added->lengths[i], slot->id};
        return 1;
    }
    return 0;
}

/* Find the first token in the text, the longest if several begin there. The text is followed by PADDING_BYTES bytes. */
static inline int find_added_token(const AddedTokens *added, const uint8_t *at, const uint8_t *end, AddedMatch *match) {
    if (!added->count) return 0;
    for (;; at++) {
        if (added->num_start_bytes == 1) {
            if (at >= end || !(at = memchr(at, added->start_bytes[0], (uint64_t)(end - at)))) return 0;
        } else {
            while (at < end && !added->is_start[*at]) at++;
            if (at >= end) return 0;
        }
        if (!(added->is_start_pair[at[0] << 5 | at[1] >> 3] >> (at[1] & 7) & 1) && at + 1 < end) continue;
        if (match_added_token(added, at, end, match)) return 1;
    }
}

static inline int contains_added_token(const AddedTokens *added, const uint8_t *at, const uint8_t *end) {
    AddedMatch match;
    return find_added_token(added, at, end, &match);
}
#endif
