/* Properties of characters, in pages of 256 that chars.py fills when a text needs them. */
#ifndef CENOTE_CHARS_H
#define CENOTE_CHARS_H
#include "text.h"

enum { MAX_REPLACEMENT_BYTES = 20 };
enum {
    LETTER = 1,
    NUMBER = 2,
    SPACE = 4,      /* white space in regular expressions of byte-level BPE, of Rust's char elsewhere */
    UNCERTAIN = 8,  /* the library must normalize a text with this character */
    REPLACED = 16,  /* normalized to `replacement`, which may be empty */
    STARTS_KEY = 32, /* a key of the precompiled character map starts with this character */
    JOINS = 64,     /* may belong to the grapheme of the character before it */
    JOINS_NEXT = 128 /* the next character may belong to its grapheme */
};

typedef struct {
    uint8_t flags, combining_class, length;
    uint8_t replacement[MAX_REPLACEMENT_BYTES + 1];
} CharInfo;

typedef struct {
    CharInfo *pages[PAGES];
    uint8_t ascii_flags[256]; /* 0 for bytes of other characters */
} CharTable;

/* Which pages a call did not find. */
typedef struct {
    uint8_t *pages;
    int any;
} MissingPages;

extern const CharInfo MISSING_CHAR;

/* The properties of a character; of no particular one if its page is missing: then the result of the call is discarded. */
static inline const CharInfo *char_info(const CharTable *chars, uint32_t code, MissingPages *missing) {
    const CharInfo *page = __atomic_load_n(&chars->pages[code >> 8], __ATOMIC_ACQUIRE);
    if (page) return &page[code & 0xff];
    missing->pages[code >> 8] = 1, missing->any = 1;
    return &MISSING_CHAR;
}

int set_page(CharTable *chars, uint64_t page, const CharInfo *infos);
void free_chars(CharTable *chars);
#endif
