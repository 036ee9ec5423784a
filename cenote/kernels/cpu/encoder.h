/* A transformer whose layers run in one call, and what its threads share. */
#ifndef CENOTE_ENCODER_H
#define CENOTE_ENCODER_H

#include "linear.h"
#include <sched.h>

enum { NO_ROPE, ROPE, LOCAL_ROPE }; /* which table of the input rotates queries and keys */

/* mixer_norm and mlp_norm come before the sublayers, or after the residual add if the encoder is post-norm; the out norms come after the
 * sublayers, before the residual add. Query and key norms are of heads, or of the width of all heads. */
typedef struct {
    PackedLinear qkv, out, up, down;
    Norm mixer_norm, mlp_norm, mixer_out_norm, mlp_out_norm, query_norm, key_norm;
    int64_t rope, window;
} LevelLayer;

/* Embedding tables of float32 or bfloat16, whose rows are summed and normalized; positions and types may be NULL. */
typedef struct {
    const void *tokens, *positions, *types;
    int64_t num_tokens, num_positions, num_types, position_offset, is_bfloat16;
    Norm norm;
} LevelEmbedding;

typedef struct {
    const Level *level;
    const LevelLayer *layers;
    int64_t num_layers, hidden, heads, kv_heads, head_dim, attention_format;
    float scale, softcap, residual_scale; /* softcap 0: none; residual_scale: of the results of sublayers */
    int32_t causal, is_post_norm, is_gated, gate_activation, is_interleaved, has_full_width_qk_norm;
    int32_t keeps_tiles; /* the rows between its layers, its inputs and its outputs are bfloat16: see TileLayers */
    Norm final_norm;
    LevelEmbedding embedding;
} LevelEncoder;

typedef struct {
    const void *rows; /* input embeddings; NULL: they are looked up from the ids below */
    const int64_t *token_ids, *positions, *types;
    const float *cosine, *sine, *local_cosine, *local_sine; /* [tokens][rotary_half] */
    const float *bias; /* of attention: [heads][2 * max_length - 1], by the distance of the key from the query; or NULL */
    int64_t rotary_half, local_rotary_half, max_length;
    const int64_t *offsets;  /* [sequences + 1], where each sequence starts */
    const int64_t *num_keys; /* [sequences], the first tokens of each that its queries attend to; NULL: all */
    void *out;
} LevelInput;

/* The threads that work on one chunk. */
typedef struct {
    Share share;
    int64_t num_expected, *arrived;
} Team;

static inline void wait_for_team(Team *team) {
    if (team->share.count == 1) return;
    team->num_expected += team->share.count;
    __atomic_add_fetch(team->arrived, 1, __ATOMIC_ACQ_REL);
    for (int64_t tries = 0; __atomic_load_n(team->arrived, __ATOMIC_ACQUIRE) < team->num_expected; tries++)
        if (tries > 20000) sched_yield();
}

static inline int64_t attention_width(const LevelEncoder *e) { return e->heads * e->head_dim; }

/* Attention over the sequences of a chunk, from rows of queries, keys and values to `out`; the rows are float32 or bfloat16. */
void cenote_attend_chunk(
    const LevelEncoder *e, const LevelLayer *layer, const LevelInput *batch, const void *qkv, void *out, int is_bfloat16, const int64_t *offsets,
    int64_t members, uint8_t *memory, Team *team
);

/* Layers of a level with tile registers that keep the rows between them in bfloat16 and in the layout of tiles. */
typedef struct TileLayers {
    int64_t (*block_rows)(const LevelEncoder *e); /* most rows of a chunk whose sums leave room for weights in a cache */
    /* Memory of a chunk, which `threads` share, and of each thread beside that of attention. */
    size_t (*chunk_bytes)(const LevelEncoder *e, int64_t rows, int64_t threads);
    size_t (*thread_bytes)(const LevelEncoder *e, int64_t rows);
    /* max_rows: of all chunks, of which `chunk_memory` has room for one */
    void (*encode_chunk)(
        const LevelEncoder *e, const LevelInput *batch, const int64_t *offsets, int64_t members, int64_t max_rows, uint8_t *chunk_memory,
        uint8_t *memory, Team *team
    );
} TileLayers;

#endif
