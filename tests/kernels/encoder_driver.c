/* Runs small encoders with the products of the level in argv[1] and prints their outputs, one per line: first float32, then int8 and
 * bfloat16 if the level has them, of the same encoders. Exits with 2 if the CPU lacks the level. Weights and inputs are the same on every machine. */
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

static PackedLinear make_linear(const Level *level, int64_t format, int64_t inputs, int64_t outputs, int64_t activation) {
    const Product *product = level->products[format];
    const int64_t words = divide_up(inputs, product->word), panels = divide_up(outputs, product->columns);
    const float *weight = random_floats(outputs * inputs, 0.0f), *bias = random_floats(outputs, 0.0f);
    float *padded_bias = calloc(panels * product->columns, sizeof(float)), *scales = calloc(panels * product->columns, sizeof(float));
    int32_t *offsets = calloc(panels * product->columns, sizeof(int32_t));
    uint8_t *out = aligned_alloc(64, divide_up(panels * words * product->columns * product->word * product->element_bytes, 64) * 64);
    memset(out, 0, panels * words * product->columns * product->word * product->element_bytes);
    for (int64_t o = 0; o < outputs; o++) {
        float largest = 0.0f;
        for (int64_t i = 0; i < inputs; i++) largest = size_of(weight[o * inputs + i]) > largest ? size_of(weight[o * inputs + i]) : largest;
        padded_bias[o] = bias[o], scales[o] = largest / 127.0f;
        for (int64_t i = 0; i < inputs; i++) {
            const int64_t index = weight_index(product, o / product->columns * words, o % product->columns, i);
            const float value = weight[o * inputs + i];
            if (format == FLOAT32) ((float *)out)[index] = value;
            else if (format == BFLOAT16) ((uint16_t *)out)[index] = to_bfloat16(value);
            else ((int8_t *)out)[index] = (int8_t)round_to_even(value / scales[o]), offsets[o] += product->input_offset * ((int8_t *)out)[index];
        }
    }
    const int is_integer = format == INT8;
    return (PackedLinear){
        out, padded_bias, is_integer ? scales : NULL, is_integer ? offsets : NULL, NULL, inputs, outputs, activation, format,
    };
}

static Norm make_norm(int is_rms) { return (Norm){random_floats(HIDDEN, 1.0f), is_rms ? NULL : random_floats(HIDDEN, 0.0f), 1e-5f, is_rms ? RMS_NORM : LAYER_NORM}; }

static int run(const Level *level, int64_t format, int is_decoder, int64_t activation) {
    static float cosine[TOKENS * HALF], sine[TOKENS * HALF], out[TOKENS * HIDDEN];
    const int64_t kv_heads = is_decoder ? 1 : HEADS;
    LevelLayer layers[NUM_LAYERS];
    for (int64_t i = 0; i < NUM_LAYERS; i++) {
        memset(&layers[i], 0, sizeof(LevelLayer));
        layers[i].qkv = make_linear(level, format, HIDDEN, (HEADS + 2 * kv_heads) * HEAD_DIM, IDENTITY);
        layers[i].out = make_linear(level, format, HEADS * HEAD_DIM, HIDDEN, IDENTITY);
        layers[i].up = make_linear(level, format, HIDDEN, is_decoder ? 2 * INTERMEDIATE : INTERMEDIATE, is_decoder ? IDENTITY : activation);
        layers[i].down = make_linear(level, format, INTERMEDIATE, HIDDEN, IDENTITY);
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
        .kv_heads = kv_heads, .head_dim = HEAD_DIM, .attention_format = FLOAT32, .scale = 0.3f, .softcap = is_decoder ? 5.0f : 0.0f,
        .residual_scale = 1.0f, .causal = is_decoder, .is_post_norm = !is_decoder, .is_gated = is_decoder,
        .gate_activation = (int32_t)activation, .is_interleaved = activation == SILU,
    };
    if (is_decoder) encoder.final_norm = make_norm(1);
    const LevelInput input = {
        .rows = random_floats(TOKENS * HIDDEN, 0.0f), .cosine = cosine, .sine = sine, .rotary_half = HALF, .out = out, .max_length = TOKENS,
        .bias = is_decoder ? NULL : random_floats(HEADS * (2 * TOKENS - 1), 0.0f),
    };
    if (cenote_level_encode(&encoder, &input, OFFSETS, 5, 1)) return 3;
    for (int64_t i = 0; i < TOKENS * HIDDEN; i++) printf("%.9g\n", out[i]);
    return 0;
}

int main(int argc, char **argv) {
    const Level *level = argc == 2 ? cenote_find_level(argv[1]) : NULL;
    if (level == NULL) return 2;
    static const int64_t formats[] = {FLOAT32, INT8, BFLOAT16};
    for (int i = 0; i < 3; i++) {
        state = 1;
        for (int64_t activation = GELU; level->products[formats[i]] && activation <= QUICK_GELU; activation++)
            if (run(level, formats[i], activation % 2, activation)) return 3;
    }
    return 0;
}
