/* Attention of one sequence, on the tiles. */
#ifndef CENOTE_NATIVE_ATTENTION_H
#define CENOTE_NATIVE_ATTENTION_H

#include "native.h"

/* What a thread works in; sized for the longest sequence it meets. */
typedef struct {
    bf16 *keys;        /* per 16 keys and 32 dimensions one tile */
    uint32_t *values;  /* per 32 keys and 16 dimensions one tile, keys in pairs */
    uint32_t *queries; /* per 32 dimensions one tile, word w of query n in row w, column n */
    float *scores;     /* [keys][16], twice */
    bf16 *weights;     /* per 32 keys one tile */
    float *attn_out;      /* [16][head_dim] */
} AttentionScratch;

/* Queries, keys and values of one head of keys: rows of bfloat16 at these distances, counted in numbers. */
typedef struct {
    const bf16 *query, *key, *value;
    bf16 *out;
    int64_t query_stride, key_stride, value_stride, out_stride;
    int64_t head_dim, group; /* as many heads of queries, side by side, share the keys */
    int64_t window;
    float scale; /* with log2(e) in it */
    int causal;
} HeadGroup;

size_t cenote_attention_scratch_bytes(int64_t length, int64_t head_dim);
AttentionScratch cenote_attention_scratch(uint8_t *memory, int64_t length, int64_t head_dim);
void cenote_attend_sequence(const HeadGroup *heads, int64_t length, const AttentionScratch *scratch);

#endif
