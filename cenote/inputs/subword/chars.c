/* Pages of character properties. */
#include "chars.h"
#include <stdlib.h>

const CharInfo MISSING_CHAR = {0};

/* Set the properties of 256 characters; a page is set once. Returns 0 if out of memory. */
int set_page(CharTable *chars, uint64_t page, const CharInfo *infos) {
    CharInfo *copy = malloc(256 * sizeof *copy);
    if (!copy) return 0;
    memcpy(copy, infos, 256 * sizeof *copy);
    if (page == 0)
        for (int byte = 0; byte < 128; byte++) chars->ascii_flags[byte] = copy[byte].flags;
    __atomic_store_n(&chars->pages[page], copy, __ATOMIC_RELEASE); /* other threads may be encoding */
    return 1;
}

void free_chars(CharTable *chars) {
    for (int page = 0; page < PAGES; page++) free(chars->pages[page]);
}
