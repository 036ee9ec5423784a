/* Compares every product of the level in argv[1] with sums in double of the rounded inputs, and sums that the format holds exactly with exact ones. Prints the
 * formats that agree, one per line, and exits with 0 if all do, 2 if the CPU lacks the level. */
#include "weight_index.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_INPUTS = 600, MAX_WORD = 64 };

/* without the mathematical library, which cross compilers cannot always link */
static float size_of(float x) { return x < 0 ? -x : x; }
static float round_to_even(float x) {
    volatile float shifted = x + 12582912.0f; /* 1.5 * 2^23 */
    return shifted - 12582912.0f;
}

/* To nearest even, in the bits of bfloat16. */
static uint16_t to_bfloat16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static float from_bfloat16(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float round_to_format(float x, int64_t format) {
    if (format == BFLOAT16) return from_bfloat16(to_bfloat16(x));
#if defined(__aarch64__)
    if (format == FLOAT16) return (float)(__fp16)x;
#endif
    return x;
}

/* Weights are small integers, which every format holds exactly. */
static int weight_of(int64_t column, int64_t input) { return (int)((column * 31 + input * 17) % 15) - 7; }

static void pack_weights(const Product *product, int64_t format, int64_t inputs, uint8_t *out) {
    const int64_t words = divide_up(inputs, product->word);
    memset(out, 0, words * product->columns * product->word * product->element_bytes);
    for (int64_t column = 0; column < product->columns; column++)
        for (int64_t input = 0; input < inputs; input++) {
            const int64_t index = weight_index(product, 0, column, input);
            const int weight = weight_of(column, input);
            if (format == INT8) ((int8_t *)out)[index] = (int8_t)weight;
            else if (format == FLOAT32) ((float *)out)[index] = (float)weight;
            else if (format == BFLOAT16) ((uint16_t *)out)[index] = to_bfloat16((float)weight);
#if defined(__aarch64__)
            else if (format == FLOAT16) ((__fp16 *)out)[index] = (__fp16)weight;
#endif
            else exit(3);
        }
}

/* What the offset of the rows adds to the sums of a column. */
static int64_t offset_of(const Product *product, int64_t column, int64_t inputs) {
    int64_t sum = 0;
    for (int64_t input = 0; input < inputs; input++) sum += weight_of(column, input);
    return product->input_offset * sum;
}

/* The sums of rows of any values have the integers that every level must have: values times 127 / the largest, rounded to even. */
static int check_integers(const Level *level, int64_t inputs, int64_t count) {
    const Product *product = level->products[INT8];
    static float rows[MAX_TILE_ROWS * MAX_INPUTS], smooth[MAX_INPUTS], scales[MAX_TILE_ROWS];
    static uint8_t packed[MAX_TILE_ROWS * (MAX_INPUTS + MAX_WORD)], weights[MAX_TILE_COLUMNS * (MAX_INPUTS + MAX_WORD)];
    static int32_t sums[MAX_TILE_ROWS * MAX_TILE_COLUMNS];
    for (int64_t i = 0; i < count * inputs; i++) rows[i] = (float)rand() / RAND_MAX * 3 - 1;
    for (int64_t i = 0; i < inputs; i++) smooth[i] = (float)rand() / RAND_MAX + 0.5f;
    const Rows all = {rows, inputs, count, inputs};
    product->pack(&all, smooth, packed, scales);
    pack_weights(product, INT8, inputs, weights);
    product->multiply(packed, weights, divide_up(inputs, product->word), sums, product->columns, count, 0, &NO_PREFETCH);
    for (int64_t row = 0; row < count; row++) {
        float largest = 0;
        for (int64_t i = 0; i < inputs; i++) {
            const float size = size_of(rows[row * inputs + i] * smooth[i]);
            largest = size > largest ? size : largest;
        }
        if (scales[row] != largest / 127.0f) return 1;
        for (int64_t column = 0; column < product->columns; column++) {
            int64_t expected = offset_of(product, column, inputs);
            for (int64_t i = 0; i < inputs; i++)
                expected += (int64_t)round_to_even(rows[row * inputs + i] * smooth[i] * (127.0f / largest)) * weight_of(column, i);
            if (sums[row * product->columns + column] != expected) {
                printf("%s: %ld inputs, row %ld, column %ld: %d instead of %ld\n", level->name, (long)inputs, (long)row, (long)column,
                    sums[row * product->columns + column], (long)expected);
                return 1;
            }
        }
    }
    return 0;
}

/* is_whole: rows of -1, 0 and 1, so that no sum of a float format is rounded; that of 128 inputs in float16 is below 2048. Otherwise rows of values that
 * float16 and bfloat16 round. */
static int check(const Level *level, int64_t format, int64_t inputs, int64_t count, int is_whole) {
    const Product *product = level->products[format];
    static float rows[MAX_TILE_ROWS * MAX_INPUTS], scales[MAX_TILE_ROWS];
    static uint8_t packed[MAX_TILE_ROWS * (MAX_INPUTS + MAX_WORD) * 4], weights[MAX_TILE_COLUMNS * (MAX_INPUTS + MAX_WORD) * 4];
    static union {
        float floats[MAX_TILE_ROWS * MAX_TILE_COLUMNS];
        int32_t integers[MAX_TILE_ROWS * MAX_TILE_COLUMNS];
    } sums;
    for (int64_t i = 0; i < count * inputs; i++) rows[i] = is_whole ? (float)(rand() % 3 - 1) : (float)(rand() % 255 - 127) / 8;
    for (int64_t row = 0; row < count; row++) rows[row * inputs] = is_whole ? 1.0f : 127.0f / 8; /* the scale of int8 rows is 1/8: they are exact */
    if (!is_whole && (format == FLOAT16 || format == BFLOAT16)) /* values to be rounded: one in 16 lies between two of bfloat16 */
        for (int64_t i = 0; i < count * inputs; i++) rows[i] = i % 16 ? (float)rand() / RAND_MAX * 3 - 1 : 1.0f + (float)(rand() % 512) / 256;
    for (int64_t row = 0; row < MAX_TILE_ROWS; row++) scales[row] = 1.0f;
    const Rows all = {rows, inputs, count, inputs};
    product->pack(&all, NULL, packed, scales);
    pack_weights(product, format, inputs, weights);
    const int64_t words = divide_up(inputs, product->word), half = words / 2, word_bytes = product->word * product->element_bytes;
    if (half) product->multiply(packed, weights, half, &sums, product->columns, count, 0, &NO_PREFETCH);
    product->multiply(packed + half * product->rows * word_bytes, weights + half * product->columns * word_bytes, words - half, &sums,
        product->columns, count, half > 0, &NO_PREFETCH);
    for (int64_t row = 0; row < count; row++)
        for (int64_t column = 0; column < product->columns; column++) {
            double expected = 0, size = 0;
            for (int64_t input = 0; input < inputs; input++) {
                const float value = rows[row * inputs + input];
                const double term = (double)round_to_format(value, format) * weight_of(column, input);
                expected += term, size += __builtin_fabs(term);
            }
            const int64_t index = row * product->columns + column;
            const double found = format == INT8 ? sums.integers[index] - offset_of(product, column, inputs) : sums.floats[index];
            const double error = __builtin_fabs(found * scales[row] - expected), limit = is_whole ? 0 : format == FLOAT16 ? 2e-3 * size : 1e-5 * size;
            if (!(error <= limit)) {
                printf("%s: %s, %ld inputs, row %ld, column %ld: %g instead of %g\n", level->name, FORMAT_NAMES[format], (long)inputs,
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
    const unsigned before = begin_tiles(level);
    for (int64_t format = 0; format < NUM_FORMATS; format++) {
        if (level->products[format] == NULL) continue;
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
            for (int64_t count = 1; count <= level->products[format]->rows; count++) {
                if (check(level, format, widths[i], count, 0)) return 1;
                if (format == INT8 ? check_integers(level, widths[i], count) : check(level, format, widths[i], count, 1)) return 1;
            }
        printf("%s\n", FORMAT_NAMES[format]);
    }
    end_tiles(level, before);
    return 0;
}
