/* Compares every product of the level in argv[1] with sums in double: exits with 0 if they agree, 2 if the CPU lacks the level. */
#include "../../cenote/kernels/cpu/level.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_INPUTS = 600 };

/* Weights are small integers, which every format holds exactly. */
static int weight_of(int64_t column, int64_t input) { return (int)((column * 31 + input * 17) % 15) - 7; }

static void pack_weights(const Product *product, int64_t format, int64_t inputs, uint8_t *out) {
    const int64_t words = divide_up(inputs, product->word);
    memset(out, 0, words * product->columns * product->word * product->element_bytes);
    for (int64_t column = 0; column < product->columns; column++)
        for (int64_t input = 0; input < inputs; input++) {
            const int64_t word = input / product->word, index = (word * product->columns + column) * product->word + input % product->word;
            const int weight = weight_of(column, input);
            if (format == INT8) ((int8_t *)out)[index] = (int8_t)weight;
            else if (format == FLOAT32) ((float *)out)[index] = (float)weight;
#if defined(__aarch64__)
            else if (format == FLOAT16) ((__fp16 *)out)[index] = (__fp16)weight;
#endif
            else exit(3);
        }
}

static int check(const Level *level, int64_t format, int64_t inputs, int64_t count) {
    const Product *product = level->products[format];
    static float rows[MAX_TILE_ROWS * MAX_INPUTS], scales[MAX_TILE_ROWS];
    static uint8_t packed[MAX_TILE_ROWS * (MAX_INPUTS + 8) * 4], weights[MAX_TILE_COLUMNS * (MAX_INPUTS + 8) * 4];
    static union {
        float floats[MAX_TILE_ROWS * MAX_TILE_COLUMNS];
        int32_t integers[MAX_TILE_ROWS * MAX_TILE_COLUMNS];
    } sums;
    for (int64_t i = 0; i < count * inputs; i++) rows[i] = (float)(rand() % 255 - 127) / 8;
    for (int64_t row = 0; row < count; row++) rows[row * inputs] = 127.0f / 8; /* the scale of int8 rows is 1/8: they are exact */
    for (int64_t row = 0; row < MAX_TILE_ROWS; row++) scales[row] = 1.0f;
    const Rows all = {rows, inputs, count, inputs};
    product->pack(&all, NULL, packed, scales);
    pack_weights(product, format, inputs, weights);
    const int64_t words = divide_up(inputs, product->word), half = words / 2, word_bytes = product->word * product->element_bytes;
    if (half) product->multiply(packed, weights, half, &sums, product->columns, count, 0);
    product->multiply(packed + half * product->rows * word_bytes, weights + half * product->columns * word_bytes, words - half, &sums,
        product->columns, count, half > 0);
    for (int64_t row = 0; row < count; row++)
        for (int64_t column = 0; column < product->columns; column++) {
            double expected = 0, size = 0;
            for (int64_t input = 0; input < inputs; input++) {
                const double term = (double)rows[row * inputs + input] * weight_of(column, input);
                expected += term, size += fabs(term);
            }
            const int64_t index = row * product->columns + column;
            const double found = format == INT8 ? sums.integers[index] : sums.floats[index];
            const double error = fabs(found * scales[row] - expected), limit = format == FLOAT16 ? 1e-2 * size : 1e-5 * size;
            if (error > limit) {
                printf("%s: format %ld, %ld inputs, row %ld, column %ld: %g instead of %g\n", level->name, (long)format, (long)inputs,
                    (long)row, (long)column, found * scales[row], expected);
                return 1;
            }
        }
    return 0;
}

int main(int argc, char **argv) {
    const Level *level = argc == 2 ? cenote_find_level(argv[1]) : NULL;
    const int64_t widths[] = {1, 7, 8, 64, 130, 384, MAX_INPUTS};
    if (level == NULL) return 2;
    for (int64_t format = 0; format < NUM_FORMATS; format++)
        for (size_t i = 0; level->products[format] && i < sizeof widths / sizeof *widths; i++)
            for (int64_t count = 1; count <= level->products[format]->rows; count++)
                if (check(level, format, widths[i], count)) return 1;
    return 0;
}
