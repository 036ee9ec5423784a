/* What attention over one sequence reads and writes. */
#ifndef CENOTE_HEAD_GROUP_H
#define CENOTE_HEAD_GROUP_H

#include <stdint.h>

/* One key-value head and the query heads that share it: rows of float32 or bfloat16, strides in elements. */
typedef struct {
    const void *query, *key, *value;
    void *out;
    int64_t query_stride, key_stride, value_stride, out_stride;
    int64_t head_dim, group; /* group: number of adjacent query heads that share the keys */
    int64_t num_keys;        /* the first tokens of the sequence, which its queries attend to */
    int64_t window;          /* largest distance between a query and its keys */
    const float *bias;       /* [group][bias_stride], by the distance of the key from the query; points at distance 0; or NULL */
    int64_t bias_stride;
    float scale, softcap; /* softcap: soft limit of the scores; 0: none */
    int causal, is_bfloat16;
} HeadGroup;

#endif
