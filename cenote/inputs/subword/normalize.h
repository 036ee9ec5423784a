/* Normalization of texts before they are split into words. */
#ifndef CENOTE_NORMALIZE_H
#define CENOTE_NORMALIZE_H
#include "chars.h"

enum { KEEP_PREFIX, ADD_PREFIX, ADD_FIRST_PREFIX, ALWAYS_ADD_PREFIX };

/* How a text of a SentencePiece tokenizer is normalized. */
typedef struct {
    int has_char_map;                  /* a precompiled character map, which works on graphemes */
    int strips_before, strips_after;   /* white space at the ends, before or after the characters are mapped: 1 left | 2 right */
    int collapses_spaces;
    int splits_spaces; /* words are separated by any white space, and each gets a prefix */
    int prefix;        /* ADD_PREFIX: a space before the text unless it starts with one; ADD_FIRST_PREFIX: only before the first part;
                          ALWAYS_ADD_PREFIX: even if it starts with one */
} Normalization;

/* Whether the text may be changed by NFC. */
int may_change_in_nfc(const CharTable *chars, const uint8_t *at, const uint8_t *end, MissingPages *missing);

/* Write the normalized text to `to`, with spaces for both spaces and U+2581, and return its end; NULL if the library must
 * normalize it. `to` has four bytes per byte of text, plus PADDING_BYTES. */
uint8_t *normalize(const Normalization *how, const CharTable *chars, const uint8_t *at, const uint8_t *end, int is_first,
                   uint8_t *to, MissingPages *missing);
#endif
