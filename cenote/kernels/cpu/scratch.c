#define _GNU_SOURCE
#include "scratch.h"
#include <stdlib.h>
#include <sys/mman.h>

enum { HUGE_PAGE_BYTES = 1 << 21 };

uint8_t *cenote_scratch(int slot, size_t bytes) {
    static __thread struct {
        uint8_t *start;
        size_t bytes;
    } buffers[NUM_SCRATCH_SLOTS];
    if (buffers[slot].bytes < bytes) {
        const size_t unit = bytes < HUGE_PAGE_BYTES ? 4096 : HUGE_PAGE_BYTES;
        free(buffers[slot].start);
        buffers[slot].bytes = (bytes + unit - 1) / unit * unit;
        buffers[slot].start = aligned_alloc(unit, buffers[slot].bytes);
        if (buffers[slot].start == NULL) buffers[slot].bytes = 0;
        else if (unit == HUGE_PAGE_BYTES) madvise(buffers[slot].start, buffers[slot].bytes, MADV_HUGEPAGE);
    }
    return buffers[slot].start;
}
