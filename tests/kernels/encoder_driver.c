/* Runs the same small encoders in every format of the level in argv[1] and prints # and the name of the format, then the outputs, one per line. Attention is in
 * float16 where cenote/kernels/cpu/encoder.py chooses it; "float16_attention" has it between products of float32, "large_float16_attention" and
 * "large_float32_attention" over values that are too large for float16. That of AMX is not run here. Exits with 2 if the CPU lacks the level. Weights and
 * inputs are the same on every machine. */
#include "../../cenote/kernels/cpu/encoder.c"
#include "weight_index.h"
#include <stdio.h>

int omp_get_thread_num(void) { return 0; } /* compiled without OpenMP */
int omp_get_num_threads(void) { return 1; }

enum { HIDDEN = 48, HEADS = 3, HEAD_DIM = 20, INTERMEDIATE = 70, NUM_LAYERS = 2, TOKENS = 75, HALF = 8 };
static const int64_t OFFSETS[] = {0, 1, 8, 8, 50, TOKENS};

/* without the mathematical library, which cross compilers cannot always link */
static float size_of(float x) { return x < 0 ? -x : x; }
static float round_to_even(float x) {
    volatile float shifted = x + 12582912.0f; /* 1.5 * 2^23 */
    return shifted - 12582912.0f;
}

static uint16_t to_bfloat16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* The power of two that float16 weights below 1 are divided by, so that the largest stays below 1: see packed_linear.py. */
static float power_of_two_above(float largest) {
    float power = 1.0f;
    while (power / 2 > largest && power > 1e-30f) power /= 2;
    return power;
}

static uint32_t state;
static float next_random(void) {
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / (1 << 24) - 0.5f;
}

static float *random_floats(int64_t count, float center) {
    float *values = aligned_alloc(64, (count + 127) / 16 * 64);
    memset(values, 0, (count + 127) / 16 * 64);
    for (int64_t i = 0; i < count; i++) values[i] = center + next_random();
    return values;
}

static PackedLinear make_linear(const Level *level, int64_t format, int64_t inputs, int64_t outputs, int64_t activation, float mean_bias) {
    const Product *product = level->products[format];
    const int64_t words = divide_up(inputs, product->word), panels = divide_up(outputs, product->columns);
    const float *weight = random_floats(outputs * inputs, 0.0f), *bias = random_floats(outputs, mean_bias);
    float max_norm = 0.0f, max_bias = 0.0f;
    float *padded_bias = calloc(panels * product->columns, sizeof(float)), *scales = calloc(panels * product->columns, sizeof(float));
    int32_t *offsets = calloc(panels * product->columns, sizeof(int32_t));
    uint8_t *out = aligned_alloc(64, divide_up(panels * words * product->columns * product->word * product->element_bytes, 64) * 64);
    memset(out, 0, panels * words * product->columns * product->word * product->element_bytes);
    for (int64_t o = 0; o < outputs; o++) {
        float largest = 0.0f;
        for (int64_t i = 0; i < inputs; i++) largest = size_of(weight[o * inputs + i]) > largest ? size_of(weight[o * inputs + i]) : largest;
        float squares = 0.0f;
        for (int64_t i = 0; i < inputs; i++) squares += weight[o * inputs + i] * weight[o * inputs + i];
        max_norm = __builtin_sqrtf(squares) > max_norm ? __builtin_sqrtf(squares) : max_norm;
        max_bias = size_of(bias[o]) > max_bias ? size_of(bias[o]) : max_bias;
        padded_bias[o] = bias[o], scales[o] = format == FLOAT16 ? power_of_two_above(largest) : largest / 127.0f;
        for (int64_t i = 0; i < inputs; i++) {
            const int64_t index = weight_index(product, o / product->columns * words, o % product->columns, i);
            const float value = weight[o * inputs + i];
            if (format == FLOAT32) ((float *)out)[index] = value;
            else if (format == BFLOAT16) ((uint16_t *)out)[index] = to_bfloat16(value);
#if defined(__aarch64__)
            else if (format == FLOAT16) ((__fp16 *)out)[index] = (__fp16)(value / scales[o]);
#endif
            else if (format != INT8) exit(3);
            else ((int8_t *)out)[index] = (int8_t)round_to_even(value / scales[o]), offsets[o] += product->input_offset * ((int8_t *)out)[index];
        }
    }
    const int is_integer = format == INT8, is_scaled = is_integer || format == FLOAT16;
    return (PackedLinear){
        out, padded_bias, is_scaled ? scales : NULL, is_integer ? offsets : NULL, NULL, inputs, outputs, activation, format, max_norm, max_bias,
    };
}

static Norm make_norm(int is_rms) { return (Norm){random_floats(HIDDEN, 1.0f), is_rms ? NULL : random_floats(HIDDEN, 0.0f), 1e-5f, is_rms ? RMS_NORM : LAYER_NORM}; }

static int run(const Level *level, int64_t format, int64_t attention_format, float mean_bias, int is_decoder, int64_t activation) {
    static float cosine[TOKENS * HALF], sine[TOKENS * HALF], out[TOKENS * HIDDEN];
    const int64_t kv_heads = is_decoder ? 1 : HEADS;
    LevelLayer layers[NUM_LAYERS];
    for (int64_t i = 0; i < NUM_LAYERS; i++) {
        memset(&layers[i], 0, sizeof(LevelLayer));
        layers[i].qkv = make_linear(level, format, HIDDEN, (HEADS + 2 * kv_heads) * HEAD_DIM, IDENTITY, mean_bias);
        layers[i].out = make_linear(level, format, HEADS * HEAD_DIM, HIDDEN, IDENTITY, 0.0f);
        layers[i].up = make_linear(level, format, HIDDEN, is_decoder ? 2 * INTERMEDIATE : INTERMEDIATE, is_decoder ? IDENTITY : activation, 0.0f);
        layers[i].down = make_linear(level, format, INTERMEDIATE, HIDDEN, IDENTITY, 0.0f);
        layers[i].mixer_norm = make_norm(is_decoder), layers[i].mlp_norm = make_norm(is_decoder);
        layers[i].window = i ? 1 << 20 : 9;
        if (!is_decoder) continue;
        layers[i].rope = ROPE, layers[i].mixer_out_norm = make_norm(1), layers[i].mlp_out_norm = make_norm(1);
        layers[i].query_norm = (Norm){random_floats(HEAD_DIM, 1.0f), NULL, 1e-6f, RMS_NORM};
        layers[i].key_norm = (Norm){random_floats(HEAD_DIM, 1.0f), NULL, 1e-6f, RMS_NORM};
    }
    for (int64_t i = 0; i < TOKENS * HALF; i++) cosine[i] = next_random(), sine[i] = next_random();
    LevelEncoder encoder = {
        .level = level, .layers = layers, .num_layers = NUM_LAYERS, .hidden = HIDDEN, .heads = HEADS,
        .kv_heads = kv_heads, .head_dim = HEAD_DIM, .attention_format = attention_format, .scale = 0.3f, .softcap = is_decoder ? 5.0f : 0.0f,
        .residual_scale = 1.0f, .causal = is_decoder, .is_post_norm = !is_decoder, .is_gated = is_decoder,
        .gate_activation = (int32_t)activation, .is_interleaved = activation == SILU,
    };
    if (is_decoder) encoder.final_norm = make_norm(1);
    const LevelInput input = {
        .rows = random_floats(TOKENS * HIDDEN, 0.0f), .cosine = cosine, .sine = sine, .rotary_half = HALF, .out = out, .max_length = TOKENS,
        .bias = is_decoder ? NULL : random_floats(HEADS * (2 * TOKENS - 1), 0.0f),
    };
    if (cenote_level_encode(&encoder, &input, OFFSETS, 5, 1, 1)) return 3;
    for (int64_t i = 0; i < TOKENS * HIDDEN; i++) printf("%.9g\n", out[i]);
    return 0;
}

/* mean_bias: of queries, keys and values */
static int run_all(const Level *level, int64_t format, int64_t attention_format, float mean_bias, const char *name) {
    printf("# %s\n", name);
    state = 1;
    for (int64_t activation = GELU; activation <= QUICK_GELU; activation++)
        if (run(level, format, attention_format, mean_bias, activation % 2, activation)) return 3;
    return 0;
}

int main(int argc, char **argv) {
    const Level *level = argc == 2 ? cenote_find_level(argv[1]) : NULL;
    if (level == NULL) return 2;
    for (int64_t format = 0; format < NUM_FORMATS; format++) {
        const int64_t attention_format = level->products[FLOAT16] && format != FLOAT32 ? FLOAT16 : FLOAT32;
        if (level->products[format] && run_all(level, format, attention_format, 0.0f, FORMAT_NAMES[format])) return 3;
    }
    if (level->products[FLOAT16] == NULL) return 0;
    const float large = 600.0f; /* see fits_float16 */
    return run_all(level, FLOAT32, FLOAT16, 0.0f, "float16_attention") || run_all(level, FLOAT32, FLOAT16, large, "large_float16_attention") ||
        run_all(level, FLOAT32, FLOAT32, large, "large_float32_attention") ? 3 : 0;
}
