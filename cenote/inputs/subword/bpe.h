/* Byte-pair encoding of one word. */
#ifndef CENOTE_BPE_H
#define CENOTE_BPE_H
#include "pieces.h"
#include "workspace.h"

typedef struct {
    uint64_t pair; /* left id << 32 | right id */
    uint32_t rank; /* NO_MERGE: free slot */
    int32_t id;
} Merge;

typedef struct {
    uint32_t code; /* UINT32_MAX: free slot */
    int32_t id;
} CharId;

typedef struct {
    Merge *merges;
    uint64_t merge_mask;
    int is_byte_level;     /* words start as bytes, else as characters with bytes as fallback */
    int32_t byte_ids[256]; /* -1: not in the vocabulary */
    CharId *char_ids;
    uint64_t char_mask;
    int matches_words; /* a word in the vocabulary is one token, whatever the merges are */
    Pieces words;
} Bpe;

/* `merges`: left, right and new id of each, in the order of their ranks. `codes`, `char_ids`: characters that are tokens. */
int init_bpe(Bpe *bpe, const int32_t *merges, uint64_t num_merges, const uint32_t *codes, const int32_t *char_ids, uint64_t num_chars);
void free_bpe(Bpe *bpe);
int32_t *encode_bpe_word(const Bpe *bpe, Workspace *workspace, const uint8_t *word, uint64_t length, int32_t *ids);
#endif
