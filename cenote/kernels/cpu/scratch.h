/* Scratch memory that threads reuse from call to call. */
#ifndef CENOTE_SCRATCH_H
#define CENOTE_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

enum { THREAD_SCRATCH, SHARED_SCRATCH, NUM_SCRATCH_SLOTS };

/* Return a buffer owned by the calling thread and reused from call to call, or NULL if allocation fails. Contents are not preserved. */
uint8_t *cenote_scratch(int slot, size_t bytes);

/* Take the next `bytes` of an arena, rounded up to whole cache lines. */
static inline void *arena_take(uint8_t **memory, size_t bytes) {
    uint8_t *start = *memory;
    *memory += (bytes + 63) / 64 * 64;
    return start;
}

#endif
