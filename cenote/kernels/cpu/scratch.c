#define _GNU_SOURCE
#include "scratch.h"
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { HUGE_PAGE_BYTES = 1 << 21 };

typedef struct {
    uint8_t *start;
    size_t bytes;
} Buffer;

static __thread Buffer buffers[NUM_SCRATCH_SLOTS];
static pthread_once_t has_key = PTHREAD_ONCE_INIT;
static pthread_key_t key; /* its value is set in threads with buffers, which are freed when they end */
static int is_key_made;

static void free_buffers(void *of_thread) {
    for (int slot = 0; slot < NUM_SCRATCH_SLOTS; slot++) free(((Buffer *)of_thread)[slot].start);
}

static void make_key(void) { is_key_made = pthread_key_create(&key, free_buffers) == 0; }

uint8_t *cenote_scratch(int slot, size_t bytes) {
    if (buffers[slot].bytes < bytes) {
        const size_t unit = bytes < HUGE_PAGE_BYTES ? 4096 : HUGE_PAGE_BYTES;
        pthread_once(&has_key, make_key);
        if (is_key_made) pthread_setspecific(key, buffers);
        free(buffers[slot].start);
        buffers[slot].bytes = (bytes + unit - 1) / unit * unit;
        buffers[slot].start = aligned_alloc(unit, buffers[slot].bytes);
        if (buffers[slot].start == NULL) buffers[slot].bytes = 0;
        else if (unit == HUGE_PAGE_BYTES) madvise(buffers[slot].start, buffers[slot].bytes, MADV_HUGEPAGE);
    }
    return buffers[slot].start;
}
