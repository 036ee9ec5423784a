/* Attention over packed sequences with the products of a level.
 *
 * Keys are packed as the columns of one product and values as the columns of another. The queries of a row tile are multiplied with
 * the keys, the softmax runs over rows of float32 scores, and its weights are packed as the rows of the second product.
 */
#include "attention.h"
#include "scratch.h"
#include <string.h>

#define LOG2_E 1.44269504f /* the softmax uses powers of two */

/* Scratch buffers of one thread, sized for the longest sequence. */
typedef struct {
    uint8_t *keys, *values, *queries, *weights;
    float *scores, *sums;
} Buffers;

static int64_t panel_bytes(const Product *product, int64_t columns, int64_t inputs) {
    return divide_up(columns, product->columns) * product->columns * packed_bytes(product, inputs);
}

static int64_t padded_keys(const Product *product, int64_t length) { return divide_up(length, product->columns) * product->columns; }

static Buffers take_buffers(const Product *product, int64_t length, int64_t head_dim, uint8_t **memory) {
    Buffers buffers;
    buffers.keys = arena_take(memory, panel_bytes(product, length, head_dim));
    buffers.values = arena_take(memory, panel_bytes(product, head_dim, length));
    buffers.queries = arena_take(memory, product->rows * packed_bytes(product, head_dim));
    buffers.weights = arena_take(memory, product->rows * packed_bytes(product, length));
    buffers.scores = arena_take(memory, product->rows * (padded_keys(product, length) + MAX_TILE_COLUMNS) * sizeof(float));
    buffers.sums = arena_take(memory, product->rows * padded_keys(product, head_dim) * sizeof(float));
    return buffers;
}

static const Product *attention_product(const Level *level, int64_t format) {
    const Product *product = level->products[format];
    return product->narrow ? product->narrow : product;
}

size_t cenote_level_attention_bytes(const Level *level, int64_t length, int64_t head_dim, int64_t format) {
    uint8_t *size = NULL, *other_size = NULL;
    take_buffers(attention_product(level, FLOAT32), length, head_dim, &size);
    if (format == BFLOAT16) other_size += level->tiles->attention_bytes(length, head_dim);
    else take_buffers(attention_product(level, format), length, head_dim, &other_size);
    return (size_t)(size > other_size ? size : other_size);
}

/* Pack rows of float32 [columns][inputs] as the columns of a product. */
static void pack_columns(const Product *product, const float *from, int64_t stride, int64_t columns, int64_t inputs, uint8_t *out) {
    for (int64_t first = 0; first < columns; first += product->columns, out += product->columns * packed_bytes(product, inputs)) {
        const Rows rows = {from + first * stride, stride, min_of(product->columns, columns - first), inputs};
        product->pack_columns(&rows, out);
    }
}

static void attend_tile(
    const Level *level, const Product *product, const HeadGroup *heads, int64_t head, int64_t first, int64_t length, const Buffers *buffers
) {
    const float *query = (const float *)heads->query + head * heads->head_dim, *bias = heads->bias ? heads->bias + head * heads->bias_stride : NULL;
    float *out = (float *)heads->out + head * heads->head_dim;
    const int is_adjusted = bias || heads->softcap != 0.0f;
    const int64_t dim = heads->head_dim, columns = product->columns, rows = min_of(product->rows, length - first);
    const int64_t window = min_of(heads->window, length), stride = padded_keys(product, length), num_keys = heads->num_keys;
    const int64_t low = max_of(0, first - window), high = min_of(num_keys, heads->causal ? first + rows : first + rows + window);
    const int64_t first_panel = low / columns, last_panel = divide_up(high, columns), begin = first_panel * columns;
    const int64_t dim_words = divide_up(dim, product->word), keys = high - begin, key_words = divide_up(keys, product->word);
    const int64_t word_bytes = product->word * product->element_bytes;
    float inverse[MAX_TILE_ROWS];
    if (low >= high) { /* the window of all rows begins behind the last key */
        for (int64_t row = 0; row < rows; row++) memset(out + (first + row) * heads->out_stride, 0, dim * sizeof(float));
        return;
    }
    const Rows query_rows = {query + first * heads->query_stride, heads->query_stride, rows, dim};
    product->pack(&query_rows, NULL, buffers->queries, NULL);
    for (int64_t panel = first_panel; panel < last_panel; panel++)
        product->multiply(buffers->queries, buffers->keys + panel * dim_words * columns * word_bytes, dim_words,
            buffers->scores + (panel - first_panel) * columns, stride, rows, 0, &NO_PREFETCH);
    for (int64_t row = 0; row < rows; row++) {
        const int64_t position = first + row, from = max_of(0, position - window) - begin;
        const int64_t until = min_of(num_keys, heads->causal ? position + 1 : position + window + 1) - begin;
        float *scores = buffers->scores + row * stride;
        if (from >= until) {
            memset(scores, 0, (last_panel * columns - begin) * sizeof(float));
            inverse[row] = 0.0f;
            continue;
        }
        if (is_adjusted)
            level->rows->adjust(scores + from, until - from, heads->scale, heads->softcap, bias ? bias + begin + from - position : NULL);
        const float scale = is_adjusted ? LOG2_E : heads->scale * LOG2_E;
        inverse[row] = 1.0f / level->rows->softmax(scores, scale, from, until, last_panel * columns - begin);
    }
    const Rows weight_rows = {buffers->scores, stride, rows, keys};
    product->pack(&weight_rows, NULL, buffers->weights, NULL);
    const int64_t all_words = divide_up(num_keys, product->word), skipped = begin / product->word;
    for (int64_t panel = 0; panel < divide_up(dim, columns); panel++)
        product->multiply(buffers->weights, buffers->values + (panel * all_words + skipped) * columns * word_bytes, key_words,
            buffers->sums + panel * columns, padded_keys(product, dim), rows, 0, &NO_PREFETCH);
    for (int64_t row = 0; row < rows; row++)
        level->rows->scale(buffers->sums + row * padded_keys(product, dim), inverse[row], dim, out + (first + row) * heads->out_stride);
}

/* Pack the values [keys][dim] as the columns of a product over the keys. Words have one input: a row stays a row. */
static void pack_values(const Product *product, const HeadGroup *heads, uint8_t *out) {
    const int64_t dim = heads->head_dim, columns = product->columns, row_bytes = columns * product->element_bytes;
    for (int64_t first = 0; first < dim; first += columns)
        for (int64_t key = 0; key < heads->num_keys; key++, out += row_bytes) {
            const int64_t count = min_of(columns, dim - first);
            product->convert((const float *)heads->value + key * heads->value_stride + first, count, out);
            memset(out + count * product->element_bytes, 0, row_bytes - count * product->element_bytes);
        }
}

static float max_absolute(const Level *level, const float *rows, int64_t stride, int64_t count, int64_t width) {
    float largest = 0.0f;
    for (int64_t row = 0; row < count; row++) {
        const float value = level->rows->max_absolute(rows + row * stride, width);
        if (!(value <= largest)) largest = value;
    }
    return largest;
}

/* Whether no score and no sum of 128 values can overflow float16. */
static int fits_float16(const Level *level, const HeadGroup *heads, int64_t length) {
    const float query = max_absolute(level, heads->query, heads->query_stride, length, heads->group * heads->head_dim);
    const float key = max_absolute(level, heads->key, heads->key_stride, heads->num_keys, heads->head_dim);
    const float value = max_absolute(level, heads->value, heads->value_stride, heads->num_keys, heads->head_dim);
    return query * key * heads->head_dim < 60000.0f && value < 500.0f;
}

void cenote_level_attend(const Level *level, const HeadGroup *heads, int64_t length, int64_t format, uint8_t *memory) {
    if (length == 0) return;
    if (format == BFLOAT16 && heads->bias == NULL && heads->softcap == 0.0f && heads->num_keys == length) {
        level->tiles->attend(heads, length, memory);
        return;
    }
    const Product *product = attention_product(level, format == FLOAT16 && fits_float16(level, heads, length) ? FLOAT16 : FLOAT32);
    const int64_t dim = heads->head_dim;
    const Buffers buffers = take_buffers(product, length, dim, &memory);
    pack_columns(product, heads->key, heads->key_stride, heads->num_keys, dim, buffers.keys);
    pack_values(product, heads, buffers.values);
    for (int64_t head = 0; head < heads->group; head++)
        for (int64_t first = 0; first < length; first += product->rows)
            attend_tile(level, product, heads, head, first, length, &buffers);
}
