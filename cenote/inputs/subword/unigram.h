/* Unigram tokenization of one word. */
#ifndef CENOTE_UNIGRAM_H
#define CENOTE_UNIGRAM_H
#include "workspace.h"

typedef struct {
    uint32_t key; /* node << 8 | byte; 0: free slot */
    uint32_t child;
} Edge;

typedef struct {
    Edge *edges;
    uint64_t edge_mask;
    uint32_t num_nodes, root_children[256];
    int32_t *node_ids; /* id of the token that ends at a node, or -1 */
    double *scores;
    double unk_score;
    int32_t unk_id;
    int has_byte_fallback;
    int32_t byte_ids[256]; /* -1: not in the vocabulary */
} Unigram;

int init_unigram(Unigram *unigram, const uint8_t *bytes, const uint64_t *ends, const double *scores, uint64_t count);
void free_unigram(Unigram *unigram);
int32_t *encode_unigram_word(const Unigram *unigram, Workspace *workspace, const uint8_t *word, uint64_t length, int32_t *ids);
#endif
