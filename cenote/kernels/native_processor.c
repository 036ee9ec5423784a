/* What the processor can do, and memory to work in; compiled without assuming anything. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SLOTS = 2, LARGE_PAGE = 1 << 21 };

/* Whether the processor has the tiles, for bfloat16 and int8, and the system lets this process use them. */
int cenote_has_tiles(void) {
    const long request_permission = 0x1023, tile_data = 18;
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    int tiles = (d >> 22 & 1) && (d >> 24 & 1) && (d >> 25 & 1), avx512 = (b >> 16 & 1) && (b >> 17 & 1) && (b >> 30 & 1) && (b >> 31 & 1);
    if (!tiles || !avx512 || !__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a >> 5 & 1)) return 0; /* bfloat16 */
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

uint8_t *cenote_memory(int slot, size_t bytes) {
    static __thread struct {
        uint8_t *start;
        size_t bytes;
    } kept[SLOTS];
    if (kept[slot].bytes < bytes) {
        const size_t unit = bytes < LARGE_PAGE ? 4096 : LARGE_PAGE;
        free(kept[slot].start);
        kept[slot].bytes = (bytes + unit - 1) / unit * unit;
        kept[slot].start = aligned_alloc(unit, kept[slot].bytes);
        if (kept[slot].start == NULL) kept[slot].bytes = 0;
        else if (unit == LARGE_PAGE) madvise(kept[slot].start, kept[slot].bytes, MADV_HUGEPAGE);
    }
    return kept[slot].start;
}
