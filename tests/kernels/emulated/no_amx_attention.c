/* Instead of native_attention.c, which needs AVX-512: the drivers compute attention in float32. */
#include "head_group.h"
#include <stddef.h>

size_t cenote_amx_attention_bytes(int64_t length, int64_t head_dim) { return (void)length, (void)head_dim, 0; }

void cenote_amx_attend(const HeadGroup *heads, int64_t length, uint8_t *memory) {
    (void)heads, (void)length, (void)memory;
    __builtin_trap();
}
