/* What one call of the encoder needs: a cache of words, and buffers. */
#ifndef CENOTE_WORKSPACE_H
#define CENOTE_WORKSPACE_H
#include "text.h"
#include <stdlib.h>

enum { CACHE_SLOTS = 1 << 15, MAX_CACHED_BYTES = 32, MAX_CACHED_IDS = 7, MAX_KEPT_BYTES = 1 << 20 };

typedef struct {
    uint64_t bytes[MAX_CACHED_BYTES / 8];
    uint8_t length, num_ids; /* length 0: free slot */
    uint8_t unused[2];
    int32_t ids[MAX_CACHED_IDS];
} CachedWord;

typedef struct {
    void *data;
    uint64_t size;
} Buffer;

typedef struct {
    CachedWord *cache;
    Buffer text, arrays;
} Workspace;

/* Return memory for at least `size` bytes; NULL if out of memory. The content is not kept. */
static inline void *reserve(Buffer *buffer, uint64_t size) {
    if (size > buffer->size) {
        free(buffer->data);
        buffer->data = malloc(size + size / 2), buffer->size = buffer->data ? size + size / 2 : 0;
    }
    return buffer->data;
}

/* Free the buffers that a long text has made large. */
static inline void trim(Buffer *buffer) {
    if (buffer->size > MAX_KEPT_BYTES) free(buffer->data), *buffer = (Buffer){0};
}

static inline void free_workspace(Workspace *workspace) {
    if (workspace) free(workspace->cache), free(workspace->text.data), free(workspace->arrays.data), free(workspace);
}

static inline Workspace *new_workspace(void) {
    Workspace *workspace = calloc(1, sizeof *workspace);
    if (workspace && !(workspace->cache = calloc(CACHE_SLOTS, sizeof *workspace->cache))) free(workspace), workspace = NULL;
    return workspace;
}

/* Return the slot of a word of 1 to MAX_CACHED_BYTES bytes, and store its bytes. */
static inline CachedWord *find_cached_word(const Workspace *workspace, const uint8_t *word, uint64_t length, uint64_t *bytes) {
    uint64_t sum = length;
    for (int i = 0; i < MAX_CACHED_BYTES / 8; i++) {
        const uint64_t start = 8 * (uint64_t)i;
        bytes[i] = length > start ? first_bytes(word + start, length - start) : 0;
        sum = (sum ^ bytes[i]) * 0x9e3779b97f4a7c15, sum ^= sum >> 32;
    }
    return &workspace->cache[sum & (CACHE_SLOTS - 1)];
}
#endif
