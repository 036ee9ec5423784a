/* Attention over one sequence with the products of a level. */
#ifndef CENOTE_ATTENTION_H
#define CENOTE_ATTENTION_H

#include "head_group.h"
#include "level.h"

/* The rows are float32. format: FLOAT32 or FLOAT16; heads with values that may overflow float16 are computed in float32. BFLOAT16: the
 * attention of a level with tiles, in float32 if there is a bias or a soft limit. */
size_t cenote_level_attention_bytes(const Level *level, int64_t length, int64_t head_dim, int64_t format);
void cenote_level_attend(const Level *level, const HeadGroup *heads, int64_t length, int64_t format, uint8_t *memory);

#endif
