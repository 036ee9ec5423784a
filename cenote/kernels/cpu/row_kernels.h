/* Kernels on rows of float32 with vectors of WIDTH floats; included by a level file. */
#include "vectors.h"

enum { GROUP = 4 }; /* vectors whose activations are computed together */
#define EACH _Pragma("GCC unroll 4") for (int i = 0; i < GROUP; i++)

/* A polynomial: the first coefficient is that of the highest power. */
#define START(COEFFICIENTS) splat(*COEFFICIENTS[0])
#define FOR_EACH_POWER(COEFFICIENTS) \
    _Pragma("GCC unroll 8") for (unsigned power = 1; power < sizeof COEFFICIENTS / sizeof *COEFFICIENTS; power++)

static const float EXP2[][4] = {
    FOUR_TIMES(1.327646680e-3f), FOUR_TIMES(9.675541293e-3f), FOUR_TIMES(5.550713290e-2f),
    FOUR_TIMES(2.402211972e-1f), FOUR_TIMES(6.931469671e-1f), FOUR_TIMES(1.0f),
};

/* The logarithm of the normal CDF at -z, fitted on 0 to 5.6, where z times the CDF is below 1e-7. */
static const float LOG2_CDF[][4] = {
    FOUR_TIMES(3.309281802e-5f),  FOUR_TIMES(-7.692197071e-4f), FOUR_TIMES(8.080716474e-3f),  FOUR_TIMES(-5.341210394e-2f),
    FOUR_TIMES(-4.587709737e-1f), FOUR_TIMES(-1.151201702f),    FOUR_TIMES(-9.999930610e-1f),
};

/* 2^x with a relative error of 2e-7, for x from -126 to 127. */
INLINE vfloat exp2_in_range(vfloat x) {
    const vfloat shifted = x + splat(12582912.0f); /* 1.5 * 2^23: the low bits hold the nearest integer */
    const vfloat f = x - (shifted - splat(12582912.0f));
    vfloat y = START(EXP2);
    FOR_EACH_POWER(EXP2) y = y * f + addend(EXP2[power]);
    return (vfloat)((vint)y + ((vint)shifted << 23));
}

INLINE vfloat exp2_of(vfloat x) { return exp2_in_range(at_least(at_most(x, 127.0f), -126.0f)); }

#define LOG2_E 1.44269504f

INLINE vfloat sigmoid(vfloat x) { return splat(1.0f) / (splat(1.0f) + exp2_of(x * splat(-LOG2_E))); }

/* x times the normal CDF at x; absolute error 1e-7 plus the rounding of float32. */
INLINE vfloat gelu(vfloat x) {
    const vfloat z = at_most(absolute(x), 5.6f);
    vfloat y = START(LOG2_CDF);
    FOR_EACH_POWER(LOG2_CDF) y = y * z + addend(LOG2_CDF[power]);
    return at_least(x, 0.0f) - z * exp2_in_range(y);
}

INLINE vfloat activate(vfloat x, const int activation) {
    switch (activation) {
    case GELU: return gelu(x);
    case GELU_TANH: return x * sigmoid((x * x * x * splat(0.044715f) + x) * splat(1.5957691216f));
    case RELU: return at_least(x, 0.0f);
    case SILU: return x * sigmoid(x);
    case QUICK_GELU: return x * sigmoid(x * splat(1.702f));
    default: return x;
    }
}

/* 2^x of several vectors, step by step: a chain of dependent instructions alone would leave most of the units idle. */
INLINE void exp2_group(vfloat x[GROUP]) {
    vfloat y[GROUP], shifted[GROUP], f[GROUP];
    EACH shifted[i] = x[i] + splat(12582912.0f);
    EACH f[i] = x[i] - (shifted[i] - splat(12582912.0f));
    EACH y[i] = START(EXP2);
    FOR_EACH_POWER(EXP2) EACH y[i] = y[i] * f[i] + addend(EXP2[power]);
    EACH x[i] = (vfloat)((vint)y[i] + ((vint)shifted[i] << 23));
}

/* GELU of several vectors. */
INLINE void gelu_group(vfloat x[GROUP]) {
    vfloat z[GROUP], y[GROUP];
    EACH z[i] = at_most(absolute(x[i]), 5.6f);
    EACH y[i] = START(LOG2_CDF);
    FOR_EACH_POWER(LOG2_CDF) EACH y[i] = y[i] * z[i] + addend(LOG2_CDF[power]);
    exp2_group(y);
    EACH x[i] = at_least(x[i], 0.0f) - z[i] * y[i];
}

/* The sum of column `c` of a row, scaled, plus the bias; `sums` points at it. */
INLINE vfloat scaled_sum(const void *sums, int64_t c, const Epilogue *epilogue, int64_t row, const int is_integer, const int has_scales) {
    vfloat value;
    if (is_integer) {
        vint sum = load_int(sums);
        if (epilogue->offsets) sum -= load_int(epilogue->offsets + c);
        value = __builtin_convertvector(sum, vfloat);
    } else value = load(sums);
    if (has_scales) value = value * splat(epilogue->row_scales[row]) * load(epilogue->scales + c);
    return value + load(epilogue->bias + c);
}

/* The whole vectors of `count` rows from `row` on, at most GROUP: the same column of all at once; the last row fills up the group. */
INLINE void finish_group(
    const float *sums, int64_t sums_stride, int64_t row, const int64_t count, int64_t whole, const Epilogue *epilogue, float *out, int64_t stride,
    const int activation, const int is_integer, const int has_scales
) {
    for (int64_t c = 0; c < whole; c += WIDTH) {
        vfloat values[GROUP];
        EACH values[i] = scaled_sum(sums + (row + min_of(i, count - 1)) * sums_stride + c, c, epilogue, row + min_of(i, count - 1), is_integer, has_scales);
        if (activation == GELU) gelu_group(values);
        else EACH values[i] = activate(values[i], activation);
        if (epilogue->add) EACH values[i] += load(out + (row + min_of(i, count - 1)) * stride + c);
        EACH store(out + (row + min_of(i, count - 1)) * stride + c, values[i]);
    }
}

INLINE void finish_as(
    const void *sums, int64_t sums_stride, int64_t rows, int64_t columns, const Epilogue *epilogue, float *out, int64_t stride,
    const int activation, const int is_integer, const int has_scales
) {
    const int64_t whole = columns / WIDTH * WIDTH, grouped = rows / GROUP * GROUP;
    const float *from = sums; /* or integers of the same size */
    for (int64_t row = 0; row < grouped; row += GROUP)
        finish_group(from, sums_stride, row, GROUP, whole, epilogue, out, stride, activation, is_integer, has_scales);
    if (grouped < rows) finish_group(from, sums_stride, grouped, rows - grouped, whole, epilogue, out, stride, activation, is_integer, has_scales);
    for (int64_t row = 0; columns > whole && row < rows; row++) { /* a tile has whole vectors of sums */
        const vfloat value = scaled_sum(from + row * sums_stride + whole, whole, epilogue, row, is_integer, has_scales);
        float *to = out + row * stride + whole;
        const vfloat result = activate(value, activation);
        store_tail(to, epilogue->add ? load_tail(to, columns - whole) + result : result, columns - whole);
    }
}

static void finish(
    const void *sums, int64_t sums_stride, int64_t rows, int64_t columns, const Epilogue *epilogue, float *out, int64_t stride
) {
#define CASE(ACTIVATION)                                                                                                      \
    case ACTIVATION:                                                                                                          \
        if (epilogue->is_integer) finish_as(sums, sums_stride, rows, columns, epilogue, out, stride, ACTIVATION, 1, 1);       \
        else if (epilogue->scales) finish_as(sums, sums_stride, rows, columns, epilogue, out, stride, ACTIVATION, 0, 1);      \
        else finish_as(sums, sums_stride, rows, columns, epilogue, out, stride, ACTIVATION, 0, 0);                            \
        break;
    switch (epilogue->activation) {
        CASE(IDENTITY)
        CASE(GELU)
        CASE(GELU_TANH)
        CASE(RELU)
        CASE(SILU)
        CASE(QUICK_GELU)
    }
#undef CASE
}

/* The mean is subtracted before the squares are summed: values far from 0 would lose precision otherwise. */
static void norm_row(const Norm *norm, const float *x, int64_t width, float *out) {
    const int64_t whole = width / WIDTH * WIDTH;
    vfloat sums = {0}, squares = {0};
    float mean = 0.0f, rest = 0.0f;
    if (norm->kind == LAYER_NORM) {
        for (int64_t c = 0; c < whole; c += WIDTH) sums += load(x + c);
        for (int64_t c = whole; c < width; c++) rest += x[c];
        mean = (sum_lanes(sums) + rest) / width, rest = 0.0f;
    }
    for (int64_t c = 0; c < whole; c += WIDTH) {
        const vfloat value = load(x + c) - splat(mean);
        squares += value * value;
    }
    for (int64_t c = whole; c < width; c++) rest += (x[c] - mean) * (x[c] - mean);
    const float factor = 1.0f / __builtin_sqrtf((sum_lanes(squares) + rest) / width + norm->eps);
    for (int64_t c = 0; c < width; c += WIDTH) {
        const int64_t count = min_of(WIDTH, width - c);
        vfloat value = ((count == WIDTH ? load(x + c) : load_tail(x + c, count)) - splat(mean)) * splat(factor);
        if (norm->weight) value *= count == WIDTH ? load(norm->weight + c) : load_tail(norm->weight + c, count);
        if (norm->bias) value += count == WIDTH ? load(norm->bias + c) : load_tail(norm->bias + c, count);
        if (count == WIDTH) store(out + c, value);
        else store_tail(out + c, value, count);
    }
}

/* The buffer has room for whole vectors. */
static float softmax(float *scores, float scale, int64_t low, int64_t high, int64_t padded) {
    vfloat largest = splat(-__builtin_inff()), sums = {0};
    for (int64_t key = 0; key < padded; key += WIDTH) {
        if (key < low || key + WIDTH > high) store(scores + key, keep_lanes(load(scores + key), low - key, high - key));
        largest = larger(load(scores + key), largest);
    }
    const vfloat maximum = splat(max_lane(largest));
    int64_t key = 0;
    for (; key + GROUP * WIDTH <= padded; key += GROUP * WIDTH) { /* independent chains of instructions */
        vfloat powers[GROUP];
        EACH powers[i] = at_least((load(scores + key + i * WIDTH) - maximum) * splat(scale), -126.0f);
        exp2_group(powers);
        EACH sums += powers[i];
        EACH store(scores + key + i * WIDTH, powers[i]);
    }
    for (; key < padded; key += WIDTH) {
        const vfloat power = exp2_in_range(at_least((load(scores + key) - maximum) * splat(scale), -126.0f));
        sums += power;
        store(scores + key, power);
    }
    return sum_lanes(sums);
}

/* NaN counts as larger than every number. */
static float max_absolute_of(const float *row, int64_t width) {
    vfloat first = {0}, second = {0};
    int64_t c = 0;
    for (; c + 2 * WIDTH <= width; c += 2 * WIDTH) {
        first = larger_absolute(absolute(load(row + c)), first);
        second = larger_absolute(absolute(load(row + c + WIDTH)), second);
    }
    float largest = max_absolute_lane(larger_absolute(first, second));
    for (; c < width; c++)
        if (!(__builtin_fabsf(row[c]) <= largest) && largest == largest) largest = __builtin_fabsf(row[c]);
    return largest;
}

#define GATE(ACTIVATION)                                                                                  \
    case ACTIVATION:                                                                                      \
        for (int64_t c = 0; c < width; c += WIDTH) {                                                      \
            const int64_t count = min_of(WIDTH, width - c);                                               \
            if (count == WIDTH) store(out + c, activate(load(gate + c), ACTIVATION) * load(gate + width + c)); \
            else {                                                                                        \
                const vfloat up = load_tail(gate + width + c, count);                                     \
                store_tail(out + c, activate(load_tail(gate + c, count), ACTIVATION) * up, count);        \
            }                                                                                             \
        }                                                                                                 \
        break;

static void gate_row(const float *gate, int64_t width, int64_t activation, float *out) {
    switch (activation) {
        GATE(IDENTITY)
        GATE(GELU)
        GATE(GELU_TANH)
        GATE(RELU)
        GATE(SILU)
        GATE(QUICK_GELU)
    }
}

static void rope_head(float *head, int64_t half, const float *cosine, const float *sine, int interleaved) {
    if (interleaved) {
        for (int64_t c = 0; c < half; c++) {
            const float first = head[2 * c], second = head[2 * c + 1];
            head[2 * c] = first * cosine[c] - second * sine[c];
            head[2 * c + 1] = second * cosine[c] + first * sine[c];
        }
        return;
    }
    int64_t c = 0;
    for (; c + WIDTH <= half; c += WIDTH) {
        const vfloat first = load(head + c), second = load(head + half + c), cos_lane = load(cosine + c), sin_lane = load(sine + c);
        store(head + c, first * cos_lane - second * sin_lane);
        store(head + half + c, second * cos_lane + first * sin_lane);
    }
    for (; c < half; c++) {
        const float first = head[c], second = head[half + c];
        head[c] = first * cosine[c] - second * sine[c];
        head[half + c] = second * cosine[c] + first * sine[c];
    }
}

static void adjust_scores(float *scores, int64_t count, float scale, float softcap, const float *bias) {
    for (int64_t c = 0; c < count; c += WIDTH) {
        const int64_t num = min_of(WIDTH, count - c);
        vfloat value = (num == WIDTH ? load(scores + c) : load_tail(scores + c, num)) * splat(scale);
        if (softcap != 0.0f) value = splat(2.0f * softcap) * sigmoid(value * splat(2.0f / softcap)) - splat(softcap); /* tanh */
        if (bias) value += num == WIDTH ? load(bias + c) : load_tail(bias + c, num);
        if (num == WIDTH) store(scores + c, value);
        else store_tail(scores + c, value, num);
    }
}

static void add_scaled_row(float *sum, const float *row, float scale, int64_t width) {
    for (int64_t c = 0; c < width; c++) sum[c] += scale * row[c];
}

static void scale_row(const float *row, float scale, int64_t width, float *out) {
    for (int64_t c = 0; c < width; c += WIDTH) {
        const int64_t count = min_of(WIDTH, width - c);
        if (count == WIDTH) store(out + c, load(row + c) * splat(scale));
        else store_tail(out + c, load_tail(row + c, count) * splat(scale), count);
    }
}

#define ROW_KERNELS {finish, norm_row, softmax, max_absolute_of, gate_row, rope_head, adjust_scores, add_scaled_row, scale_row}
