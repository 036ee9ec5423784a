/* Linear layers in bfloat16 or int8 with AMX: four tiles accumulate 32 rows x 32 outputs, and bias and activation are applied
 * while the sums are in cache.
 *
 * The accumulation order of a row does not depend on the other rows: results are bitwise independent of the batch.
 */
#include "cpu/compiler.h"
#if KNOWS_AMX
#include "native_linear.h"

/* Pending epilogue of a block: sums of 32 columns that still need scales, bias, activation and the store to the output. It is
 * interleaved with the tile products of the next block, so that vector and tile units overlap. */
typedef struct {
    const float *sums; /* [rows][32], or int32 */
    const float *bias, *scales, *row_scales;
    uint8_t *out;
    int64_t row, block_gap; /* output row stride in bytes, and the extra stride after 16 rows */
    int64_t left, rows_before_gap;
    __mmask32 columns;
} PendingBlock;

#define INLINE static inline __attribute__((always_inline))

INLINE void epilogue_step(PendingBlock *epilogue, int64_t rows, const int activation, const int int8) {
    for (rows = min_i64(rows, epilogue->left), epilogue->left -= rows; rows > 0; rows--) {
        __m512 low, high;
        if (int8) {
            const __m512 row_scale = _mm512_set1_ps(*epilogue->row_scales++);
            low = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(epilogue->sums)), row_scale);
            high = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(epilogue->sums + 16)), row_scale);
            low = _mm512_fmadd_ps(low, _mm512_loadu_ps(epilogue->scales), _mm512_loadu_ps(epilogue->bias));
            high = _mm512_fmadd_ps(high, _mm512_loadu_ps(epilogue->scales + 16), _mm512_loadu_ps(epilogue->bias + 16));
        } else {
            low = _mm512_add_ps(_mm512_load_ps(epilogue->sums), _mm512_loadu_ps(epilogue->bias));
            high = _mm512_add_ps(_mm512_load_ps(epilogue->sums + 16), _mm512_loadu_ps(epilogue->bias + 16));
        }
        const __m512i both = f32x2_to_bf16(apply_activation(low, activation), apply_activation(high, activation));
        if (epilogue->columns == 0xffffffffu) _mm512_storeu_si512(epilogue->out, both);
        else _mm512_mask_storeu_epi16(epilogue->out, epilogue->columns, both);
        epilogue->sums += PANEL;
        epilogue->out += epilogue->row;
        if (--epilogue->rows_before_gap == 0) epilogue->out += epilogue->block_gap;
    }
}

/* Prefetch of the weights needed next, a few cache lines per step, and of the 32 rows of sums written next. */
typedef struct {
    const uint8_t *next, *end;
    int64_t lines; /* per step */
    uint8_t *sums;
    int64_t rows; /* per step */
} Fetch;

static inline Fetch fetch_init(const uint8_t *panel, int64_t bytes, int64_t steps) {
    return (Fetch){panel, panel + bytes, (bytes / 64 + steps - 1) / steps, NULL, 0};
}

INLINE void fetch_step(Fetch *prefetch, const int sums) {
    const uint8_t *end = prefetch->next + prefetch->lines * 64;
    if (end > prefetch->end) end = prefetch->end;
    for (; prefetch->next < end; prefetch->next += 64) _mm_prefetch(prefetch->next, _MM_HINT_T1);
    if (sums)
        for (int64_t row = 0; row < prefetch->rows; row++, prefetch->sums += PANEL * sizeof(float)) {
            _mm_prefetch(prefetch->sums, _MM_HINT_ET0);
            _mm_prefetch(prefetch->sums + 64, _MM_HINT_ET0);
        }
}

/* sums = rows x panel (+= if `add`) over the steps from `begin` to `end`: 32 rows (16 unless is_pair) by 32 columns. */
INLINE void tile_matmul(
    const RowLayout *rows, int64_t block, const uint8_t *panel, int64_t begin, int64_t end, const int is_pair, const int int8,
    void *sums, int64_t stride, int add, Fetch *prefetch, PendingBlock *epilogue, const int activation
) {
    uint8_t *c = sums;
    const uint8_t *a = (const uint8_t *)rows->start + block * rows->block + begin * rows->step, *b = panel + begin * 2 * TILE_BYTES;
    const int64_t block_stride = rows->block, row = rows->row, step = rows->step;
    const int64_t rows_per_step = epilogue ? (epilogue->left + end - begin - 1) / (end - begin) : 0;
    if (add) {
        _tile_loadd(0, c, stride);
        _tile_loadd(1, c + 64, stride);
        if (is_pair) {
            _tile_loadd(2, c + TILE_ROWS * stride, stride);
            _tile_loadd(3, c + TILE_ROWS * stride + 64, stride);
        }
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t i = begin; i < end; i++, a += step, b += 2 * TILE_BYTES) {
        /* streaming loads for the rows, so that the panel stays in the L1 cache */
        _tile_loadd(6, b, 64);
        _tile_stream_loadd(4, a, row);
        _tile_loadd(7, b + TILE_BYTES, 64);
        if (int8) _tile_dpbssd(0, 4, 6);
        else _tile_dpbf16ps(0, 4, 6);
        if (is_pair) _tile_stream_loadd(5, a + block_stride, row);
        if (int8) _tile_dpbssd(1, 4, 7);
        else _tile_dpbf16ps(1, 4, 7);
        if (is_pair && int8) {
            _tile_dpbssd(2, 5, 6);
            _tile_dpbssd(3, 5, 7);
        } else if (is_pair) {
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        fetch_step(prefetch, epilogue == NULL);
        if (epilogue) epilogue_step(epilogue, rows_per_step, activation, int8);
    }
    _tile_stored(0, c, stride);
    _tile_stored(1, c + 64, stride);
    if (is_pair) {
        _tile_stored(2, c + TILE_ROWS * stride, stride);
        _tile_stored(3, c + TILE_ROWS * stride + 64, stride);
    }
}

INLINE void linear(
    const PackedLinear *layer, const RowLayout *rows, int64_t count, int64_t first, int64_t last, const RowLayout *out, float *scratch,
    const int activation, const int int8
) {
    const int64_t steps = num_steps(layer), parts = (steps + MAX_STEPS - 1) / MAX_STEPS, part = (steps + parts - 1) / parts;
    const int64_t blocks = (count + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS);
    PendingBlock epilogue = {.row = out->row, .block_gap = out->block - TILE_ROWS * out->row};
    int parity = 0;
    for (int64_t panel = first; panel < last; panel++) {
        const uint8_t *tiles = (const uint8_t *)layer->panels + panel * steps * 2 * TILE_BYTES;
        for (int64_t begin = 0; begin < steps; begin += part) {
            const int64_t end = min_i64(begin + part, steps);
            Fetch prefetch = fetch_init(tiles + end * 2 * TILE_BYTES, part * 2 * TILE_BYTES, part * blocks);
            for (int64_t row = 0; row < count; row += 2 * TILE_ROWS) {
                float *sums = scratch + (parts > 1 ? row : (parity ^= 1) * 2 * TILE_ROWS) * PANEL;
                const int64_t block = row / TILE_ROWS, stride = PANEL * sizeof(float);
                if (count - row > TILE_ROWS)
                    tile_matmul(rows, block, tiles, begin, end, 1, int8, sums, stride, begin > 0, &prefetch, &epilogue, activation);
                else tile_matmul(rows, block, tiles, begin, end, 0, int8, sums, stride, begin > 0, &prefetch, &epilogue, activation);
                if (end < steps) continue;
                epilogue.sums = sums;
                epilogue.bias = layer->bias + panel * PANEL;
                epilogue.scales = int8 ? layer->scales + panel * PANEL : NULL;
                epilogue.row_scales = int8 ? rows->scales + row : NULL;
                epilogue.out = (uint8_t *)out->start + block * out->block + (panel - first) * out->step;
                epilogue.left = min_i64(2 * TILE_ROWS, count - row);
                epilogue.rows_before_gap = TILE_ROWS;
                epilogue.columns = 0xffffffffu >> (PANEL - min_i64(PANEL, layer->outputs - panel * PANEL));
            }
        }
    }
    epilogue_step(&epilogue, 2 * TILE_ROWS, activation, int8);
}

void cenote_linear_rows(
    const PackedLinear *layer, const RowLayout *rows, int64_t count, int64_t first, int64_t last, const RowLayout *out, float *scratch
) {
#define CASE(ACTIVATION)                                                                            \
    case ACTIVATION:                                                                                \
        if (is_int8(layer)) linear(layer, rows, count, first, last, out, scratch, ACTIVATION, 1);      \
        else linear(layer, rows, count, first, last, out, scratch, ACTIVATION, 0);                     \
        break;
    switch (layer->activation) {
        CASE(IDENTITY)
        CASE(GELU)
        CASE(GELU_TANH)
        CASE(RELU)
        CASE(SILU)
        CASE(QUICK_GELU)
    }
#undef CASE
}

/* sums = int8 products times the scales of their rows (+= if `add`). */
static void add_scaled(const int32_t *products, const float *scales, int64_t count, float *sums, int add) {
    for (int64_t row = 0; row < count; row++, products += PANEL, sums += PANEL) {
        const __m512 scale = _mm512_set1_ps(scales[row]), zero = _mm512_setzero_ps();
        const __m512 low = _mm512_cvtepi32_ps(_mm512_load_si512(products)), high = _mm512_cvtepi32_ps(_mm512_load_si512(products + 16));
        _mm512_storeu_ps(sums, _mm512_fmadd_ps(low, scale, add ? _mm512_loadu_ps(sums) : zero));
        _mm512_storeu_ps(sums + 16, _mm512_fmadd_ps(high, scale, add ? _mm512_loadu_ps(sums + 16) : zero));
    }
}

void cenote_linear_partial_sums(
    const PackedLinear *layer, const RowLayout *rows, int64_t count, int64_t first, int64_t last, int64_t begin, int64_t end, int add,
    float *sums, float *scratch
) {
    const int64_t steps = num_steps(layer), width = layer->outputs, blocks = (count + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS);
    for (int64_t panel = first; panel < last; panel++) {
        const uint8_t *tiles = (const uint8_t *)layer->panels + (panel * steps + begin) * 2 * TILE_BYTES;
        /* weights needed next: the same steps of the next panel, or the following steps of the first panel */
        const uint8_t *next = panel + 1 < last ? tiles + steps * 2 * TILE_BYTES : (const uint8_t *)layer->panels + (first * steps + end) * 2 * TILE_BYTES;
        Fetch prefetch = fetch_init(next, (end - begin) * 2 * TILE_BYTES, (end - begin) * blocks);
        for (int64_t from = 0; from < end - begin; from += is_int8(layer) ? end - begin : MAX_STEPS)
            for (int64_t row = 0; row < count; row += 2 * TILE_ROWS) {
                float *to = sums + row * width + panel * 2 * TILE_ROWS * PANEL;
                const int64_t block = row / TILE_ROWS, until = min_i64(from + MAX_STEPS, end - begin), stride = PANEL * sizeof(float);
                const int is_pair = count - row > TILE_ROWS;
                const int64_t next_panel = min_i64(panel + 1, last - 1);
                float *after = row + 2 * TILE_ROWS < count ? to + 2 * TILE_ROWS * width : sums + next_panel * 2 * TILE_ROWS * PANEL;
                prefetch.sums = (uint8_t *)after;
                prefetch.rows = (2 * TILE_ROWS + until - from - 1) / (until - from);
                if (is_int8(layer)) {
                    if (is_pair) tile_matmul(rows, block, tiles, 0, end - begin, 1, 1, scratch, PANEL * 4, 0, &prefetch, NULL, IDENTITY);
                    else tile_matmul(rows, block, tiles, 0, end - begin, 0, 1, scratch, PANEL * 4, 0, &prefetch, NULL, IDENTITY);
                    add_scaled((const int32_t *)scratch, rows->scales + row, min_i64(2 * TILE_ROWS, count - row), to, add);
                } else if (is_pair) tile_matmul(rows, block, tiles, from, until, 1, 0, to, stride, add || from > 0, &prefetch, NULL, IDENTITY);
                else tile_matmul(rows, block, tiles, from, until, 0, 0, to, stride, add || from > 0, &prefetch, NULL, IDENTITY);
            }
    }
}

/* The next 32 values of a row: the even and the odd ones; or, since SmoothQuant scales are in order, the lower and the upper half. */
INLINE void load_values(const uint8_t *from, const float *smooth_scales, const int has_smooth_scales, __m512 values[2]) {
    const __m512i both = _mm512_loadu_si512(from);
    if (has_smooth_scales) {
        values[0] = _mm512_mul_ps(bf16_to_f32(_mm512_castsi512_si256(both)), _mm512_loadu_ps(smooth_scales));
        values[1] = _mm512_mul_ps(bf16_to_f32(_mm512_extracti64x4_epi64(both, 1)), _mm512_loadu_ps(smooth_scales + 16));
    } else {
        values[0] = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
        values[1] = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(0xffff0000)));
    }
}

INLINE float quantize(
    const uint8_t *from, int64_t step, int64_t width, const float *smooth_scales, int8_t *to, const int has_smooth_scales
) {
    /* without the sign bit, floats order like unsigned integers, with NaN above all others */
    const __m512i abs_mask16 = _mm512_set1_epi32(0x7fff7fff), abs_mask32 = _mm512_set1_epi32(0x7fffffff);
    const __m512i upper = _mm512_set1_epi32(0xffff0000), lower = _mm512_set1_epi32(0xff);
    __m512i max_bits = _mm512_setzero_si512();
    __m512 values[2];
    for (int64_t c = 0; c < width; c += 32)
        if (has_smooth_scales) {
            load_values(from + c / 32 * step, smooth_scales + c, 1, values);
            max_bits = _mm512_max_epu32(max_bits, _mm512_and_si512(_mm512_castps_si512(values[0]), abs_mask32));
            max_bits = _mm512_max_epu32(max_bits, _mm512_and_si512(_mm512_castps_si512(values[1]), abs_mask32));
        } else max_bits = _mm512_max_epu16(max_bits, _mm512_and_si512(_mm512_loadu_si512(from + c / 32 * step), abs_mask16));
    if (!has_smooth_scales) max_bits = _mm512_max_epu32(_mm512_and_si512(max_bits, upper), _mm512_slli_epi32(max_bits, 16));
    const float max_abs = _mm512_cvtss_f32(_mm512_castsi512_ps(_mm512_set1_epi32(_mm512_reduce_max_epu32(max_bits))));
    const __m512 factor = _mm512_set1_ps(max_abs > 0 ? 127.0f / max_abs : 0.0f);
    for (int64_t c = 0; c < width; c += 32, smooth_scales += has_smooth_scales ? 32 : 0) {
        uint8_t *out = (uint8_t *)to + c / 64 * TILE_BYTES + c % 64;
        load_values(from + c / 32 * step, smooth_scales, has_smooth_scales, values);
        const __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(values[0], factor)), second = _mm512_cvtps_epi32(_mm512_mul_ps(values[1], factor));
        if (has_smooth_scales) {
            _mm_storeu_si128((void *)out, _mm512_cvtepi32_epi8(first));
            _mm_storeu_si128((void *)(out + 16), _mm512_cvtepi32_epi8(second));
        } else { /* the low byte of `first` and the low byte of `second` above it, in each 16-bit word */
            const __m512i pairs = _mm512_ternarylogic_epi32(lower, first, _mm512_slli_epi32(second, 8), 0xca);
            _mm256_storeu_si256((void *)out, _mm512_cvtepi32_epi16(pairs));
        }
    }
    return max_abs / 127.0f;
}

float cenote_quantize(const void *row, int64_t step, int64_t width, const float *smooth_scales, void *out) {
    if (smooth_scales) return quantize(row, step, width, smooth_scales, out, 1);
    return quantize(row, step, width, NULL, out, 0);
}

/* Compute the panels from `first` to `last` for contiguous rows of bfloat16, in the calling thread. */
static void linear_rows(const PackedLinear *layer, const bf16 *x, int64_t count, int64_t first, int64_t last, bf16 *out, uint8_t *memory) {
    const int64_t inputs = layer->inputs, full = is_int8(layer) ? 0 : count / TILE_ROWS * TILE_ROWS;
    float *scratch = arena_take(&memory, linear_scratch_bytes(count));
    RowLayout to = row_major(out + first * PANEL, layer->outputs * sizeof(bf16));
    if (full > 0) {
        const RowLayout rows = row_major(x, inputs * sizeof(bf16));
        cenote_linear_rows(layer, &rows, full, first, last, &to, scratch);
    }
    if (full == count) return;
    /* rows that tiles cannot load in place are copied: a partial block of 16 rows, or rows to be quantized to int8 */
    uint8_t *copy = arena_take(&memory, round_up(count - full, 2 * TILE_ROWS) * inputs * sizeof(bf16));
    RowLayout rows = tile_layout(copy, inputs * (is_int8(layer) ? 1 : sizeof(bf16)));
    float *scales = arena_take(&memory, round_up(count, 2 * TILE_ROWS) * sizeof(float));
    rows.scales = scales;
    for (int64_t row = full; row < count; row++) {
        if (is_int8(layer)) scales[row] = cenote_quantize(x + row * inputs, 64, inputs, layer->smooth_scales, tile_row(copy, row, inputs));
        else
            for (int64_t c = 0; c < inputs; c += 32)
                _mm512_store_si512(copy + c / 32 * TILE_BYTES + (row - full) * 64, _mm512_loadu_si512(x + row * inputs + c));
    }
    to.start = (const bf16 *)to.start + full * layer->outputs;
    cenote_linear_rows(layer, &rows, count - full, first, last, &to, scratch);
}

/* x [count][inputs] -> out [count][outputs]. Threads split the rows, or the outputs as well if there are few rows. Returns 0, or 1
 * if no scratch memory could be allocated. */
int cenote_linear(const PackedLinear *layer, const bf16 *x, int64_t count, bf16 *out, int64_t threads) {
    if (count == 0) return 0;
    const int64_t panels = num_panels(layer), block_rows = max_i64(32, min_i64(256, round_up((count + threads - 1) / threads, 32)));
    const int64_t blocks = (count + block_rows - 1) / block_rows;
    const int64_t pieces = blocks >= threads ? 1 : min_i64(panels, (threads + blocks - 1) / blocks);
    const size_t bytes = linear_scratch_bytes(block_rows) + block_rows * (layer->inputs * sizeof(bf16) + sizeof(float)) + 1024;
    int64_t failed = 0;
#pragma omp parallel num_threads(threads) if (blocks * pieces > 1)
    {
        uint8_t *memory = cenote_scratch(THREAD_SCRATCH, bytes);
        const unsigned before = amx_begin();
#pragma omp for schedule(dynamic)
        for (int64_t unit = 0; unit < blocks * pieces; unit++) {
            const int64_t row = unit / pieces * block_rows, piece = unit % pieces;
            if (memory == NULL) __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
            else
                linear_rows(
                    layer, x + row * layer->inputs, min_i64(block_rows, count - row), panels * piece / pieces,
                    panels * (piece + 1) / pieces, out + row * layer->outputs, memory
                );
        }
        amx_end(before);
    }
    return failed;
}
#endif
