/* What the drivers share: the names of the formats, and where a weight is in packed weights. */
#include "../../cenote/kernels/cpu/level.h"

static const char *const FORMAT_NAMES[NUM_FORMATS] = {[FLOAT32] = "float32", [FLOAT16] = "float16", [BFLOAT16] = "bfloat16", [INT8] = "int8"};

/* Weights are [panel][word][columns][inputs of a word]. A word of 64 bytes has the layout of tiles: [16 columns each][words of four
 * bytes][16 columns][inputs of four bytes]. `first_word`: that of the panel. */
static inline int64_t weight_index(const Product *product, int64_t first_word, int64_t column, int64_t input) {
    const int64_t word = first_word + input / product->word, rest = input % product->word;
    if (product->word * product->element_bytes < CACHE_LINE) return (word * product->columns + column) * product->word + rest;
    const int64_t four_bytes = 4 / product->element_bytes, row = column / 16 * 16 + rest / four_bytes;
    return word * product->columns * product->word + (row * 16 + column % 16) * four_bytes + rest % four_bytes;
}
