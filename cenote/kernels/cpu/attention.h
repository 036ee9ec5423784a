/* Attention over one sequence with the products of a level. */
#ifndef CENOTE_ATTENTION_H
#define CENOTE_ATTENTION_H

#include "level.h"

/* One key-value head and the query heads that share it: rows of float32, strides in floats. */
typedef struct {
    const float *query, *key, *value;
    float *out;
    int64_t query_stride, key_stride, value_stride, out_stride;
    int64_t head_dim, group; /* group: number of adjacent query heads that share the keys */
    int64_t window;          /* largest distance between a query and its keys */
    const float *bias;       /* [group][bias_stride], by the distance of the key from the query; points at distance 0; or NULL */
    int64_t bias_stride;
    float scale, softcap; /* softcap: soft limit of the scores; 0: none */
    int causal;
} HeadGroup;

/* format: FLOAT32 or FLOAT16; heads with values that may overflow float16 are computed in float32. */
size_t cenote_level_attention_bytes(const Level *level, int64_t length, int64_t head_dim, int64_t format);
void cenote_level_attend(const Level *level, const HeadGroup *heads, int64_t length, int64_t format, uint8_t *memory);

#endif
