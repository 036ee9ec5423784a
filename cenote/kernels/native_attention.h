/* Attention over one sequence with AMX. */
#ifndef CENOTE_NATIVE_ATTENTION_H
#define CENOTE_NATIVE_ATTENTION_H

#include "cpu/head_group.h"
#include "native.h"

/* Scratch buffers of one thread, sized for the longest sequence of the batch. */
typedef struct {
    bf16 *keys;        /* one tile per 16 keys and 32 dimensions */
    uint32_t *values;  /* one tile per 32 keys and 16 dimensions, keys interleaved in pairs */
    uint32_t *queries; /* one tile per 32 dimensions; word w of query n is in row w, column n */
    float *scores;     /* [2][keys][16]: double buffered */
    bf16 *weights;     /* one tile per 32 keys */
    float *attn_out;   /* [16][head_dim] */
} AttentionScratch;

size_t cenote_attention_scratch_bytes(int64_t length, int64_t head_dim);
AttentionScratch cenote_attention_scratch(uint8_t *memory, int64_t length, int64_t head_dim);
/* Without bias and softcap. */
void cenote_attend_sequence(const HeadGroup *heads, int64_t length, const AttentionScratch *scratch);

#endif
