/* The table of levels; compiled for the baseline of the architecture. */
#include "compiler.h"
#include "level.h"
#include <string.h>

#if defined(__aarch64__)
#include "arm.h"
#include <sys/auxv.h>

enum { HAS_FP16 = 1 << 10, HAS_DOTPROD = 1 << 20 }; /* bits of AT_HWCAP */
enum { HAS_I8MM = 1 << 13, HAS_BF16 = 1 << 14 };    /* of AT_HWCAP2 */

static int has_neon(void) { return 1; }
static int has_fp16(void) { return (getauxval(AT_HWCAP) & HAS_FP16) != 0; }
static int has_dotprod(void) { return has_fp16() && (getauxval(AT_HWCAP) & HAS_DOTPROD) != 0; }
#if KNOWS_ARM_I8MM_AND_BF16
static int has_i8mm(void) { return has_dotprod() && (getauxval(AT_HWCAP2) & HAS_I8MM) != 0; }
static int has_bf16(void) { return has_i8mm() && (getauxval(AT_HWCAP2) & HAS_BF16) != 0; } /* ARMv8.6 has both */
#endif

static const Level LEVELS[] = {
    {"neon", has_neon, {[FLOAT32] = &cenote_neon_float32}, &cenote_neon_rows},
    {"fp16", has_fp16, {[FLOAT32] = &cenote_neon_float32, [FLOAT16] = &cenote_fp16_float16}, &cenote_neon_rows},
    {
        "dotprod",
        has_dotprod,
        {[FLOAT32] = &cenote_neon_float32, [FLOAT16] = &cenote_fp16_float16, [INT8] = &cenote_dotprod_int8},
        &cenote_neon_rows,
    },
#if KNOWS_ARM_I8MM_AND_BF16
    {
        "i8mm",
        has_i8mm,
        {[FLOAT32] = &cenote_neon_float32, [FLOAT16] = &cenote_fp16_float16, [INT8] = &cenote_i8mm_int8},
        &cenote_neon_rows,
    },
    {
        "bf16",
        has_bf16,
        {[FLOAT32] = &cenote_neon_float32, [FLOAT16] = &cenote_fp16_float16, [BFLOAT16] = &cenote_bf16_bfloat16, [INT8] = &cenote_i8mm_int8},
        &cenote_neon_rows,
    },
#endif
    {.name = NULL},
};
#elif defined(__x86_64__)
#include "x86.h"

#define HAS(FEATURE) (__builtin_cpu_supports(FEATURE) != 0)

static int has_avx2(void) { return HAS("avx2") && HAS("fma"); }
static int has_avx512(void) { return has_avx2() && HAS("avx512f") && HAS("avx512bw") && HAS("avx512dq") && HAS("avx512vl"); }
static int has_avx512_vnni(void) { return has_avx512() && HAS("avx512vnni"); }
#if KNOWS_AVX_VNNI_AND_AVX512_BF16
static int has_avx2_vnni(void) { return has_avx2() && HAS("avxvnni"); }
static int has_avx512_bf16(void) { return has_avx512_vnni() && HAS("avx512bf16"); }
#endif

static const Level LEVELS[] = {
    {"avx2", has_avx2, {[FLOAT32] = &cenote_avx2_float32}, &cenote_avx2_rows},
#if KNOWS_AVX_VNNI_AND_AVX512_BF16
    {"avx2_vnni", has_avx2_vnni, {[FLOAT32] = &cenote_avx2_float32, [INT8] = &cenote_avx2_int8}, &cenote_avx2_rows},
#endif
    {"avx512", has_avx512, {[FLOAT32] = &cenote_avx512_float32}, &cenote_avx512_rows},
    {"avx512_vnni", has_avx512_vnni, {[FLOAT32] = &cenote_avx512_float32, [INT8] = &cenote_avx512_int8}, &cenote_avx512_rows},
#if KNOWS_AVX_VNNI_AND_AVX512_BF16
    {
        "avx512_bf16",
        has_avx512_bf16,
        {[FLOAT32] = &cenote_avx512_float32, [BFLOAT16] = &cenote_avx512_bfloat16, [INT8] = &cenote_avx512_int8},
        &cenote_avx512_rows,
    },
#endif
#if KNOWS_AMX
    {
        "amx",
        cenote_has_amx,
        {[FLOAT32] = &cenote_avx512_float32, [BFLOAT16] = &cenote_amx_bfloat16, [INT8] = &cenote_amx_int8},
        &cenote_avx512_rows,
        &cenote_amx_tiles,
    },
#endif
    {.name = NULL},
};
#else
static const Level LEVELS[] = {{.name = NULL}};
#endif

const Level *cenote_find_level(const char *name) {
    for (const Level *level = LEVELS; level->name; level++)
        if (strcmp(level->name, name) == 0) return level->is_supported() ? level : NULL;
    return NULL;
}

/* The layout of a product: rows, columns, inputs per word and the offset of inputs; zeros if the level has no such product. */
void cenote_product_layout(const Level *level, int64_t format, int64_t layout[4]) {
    const Product *product = level->products[format];
    layout[0] = product ? product->rows : 0;
    layout[1] = product ? product->columns : 0;
    layout[2] = product ? product->word : 0;
    layout[3] = product ? product->input_offset : 0;
}
