/* Hash table from the pieces of a vocabulary to their ids. */
#ifndef CENOTE_PIECES_H
#define CENOTE_PIECES_H
#include "text.h"
#include <stdlib.h>

typedef struct {
    uint64_t head; /* the first eight bytes */
    uint32_t key;  /* 2 * length + is_continuation; 0: free slot */
    int32_t id;
} PieceSlot;

typedef struct {
    PieceSlot *slots;
    uint32_t *tails; /* [slot]: offset in `bytes` of the piece after its first eight bytes */
    uint8_t *bytes;
    uint64_t mask;
} Pieces;

static inline void free_pieces(Pieces *pieces) { free(pieces->slots), free(pieces->tails), free(pieces->bytes); }

/* At least half of the slots stay free if at most `count` pieces are added. Returns 0 if out of memory. */
static inline int allocate_pieces(Pieces *pieces, const uint8_t *bytes, uint64_t length, uint64_t count) {
    uint64_t size = 1024;
    while (size < 2 * count) size *= 2;
    pieces->slots = calloc(size, sizeof *pieces->slots), pieces->tails = calloc(size, sizeof *pieces->tails);
    pieces->bytes = calloc(length + PADDING_BYTES, 1), pieces->mask = size - 1;
    if (!pieces->slots || !pieces->tails || !pieces->bytes) return 0;
    if (length) memcpy(pieces->bytes, bytes, length); /* `bytes` may be NULL */
    return 1;
}

/* Return the slot of a piece, or the free slot where it belongs. */
static inline uint64_t find_piece(const Pieces *pieces, const uint8_t *at, uint64_t length, int is_continuation) {
    uint64_t key = 2 * length + is_continuation, head = first_bytes(at, length), slot = hash_bytes(at, length, key) & pieces->mask;
    for (; pieces->slots[slot].key; slot = (slot + 1) & pieces->mask)
        if (pieces->slots[slot].key == key && pieces->slots[slot].head == head &&
            (length <= 8 || !memcmp(pieces->bytes + pieces->tails[slot], at + 8, length - 8)))
            break;
    return slot;
}

/* Add a piece of `bytes`. */
static inline void add_piece(Pieces *pieces, uint64_t start, uint64_t length, int is_continuation, int32_t id) {
    if (!length) return;
    uint64_t slot = find_piece(pieces, pieces->bytes + start, length, is_continuation);
    pieces->slots[slot] = (PieceSlot){first_bytes(pieces->bytes + start, length), (uint32_t)(2 * length + is_continuation), id};
    pieces->tails[slot] = (uint32_t)(start + 8);
}
#endif
