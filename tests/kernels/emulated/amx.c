/* What the table of levels takes from the other kernels of AMX, for CPUs and emulators that lack it. */
#include "head_group.h"
#include <stddef.h>

int cenote_has_amx(void) { return 1; }
size_t cenote_amx_attention_bytes(int64_t length, int64_t head_dim) { return (void)length, (void)head_dim, 0; }

/* The drivers compute attention in float32. */
void cenote_amx_attend(const HeadGroup *heads, int64_t length, uint8_t *memory) {
    (void)heads, (void)length, (void)memory;
    __builtin_trap();
}
