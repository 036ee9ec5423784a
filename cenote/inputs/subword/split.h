/* Split a text into the words of byte-level BPE. */
#ifndef CENOTE_SPLIT_H
#define CENOTE_SPLIT_H
#include "chars.h"

enum { GPT2, ONE_DIGIT, THREE_DIGITS, NUM_PATTERNS }; /* regular expressions; the last two differ in how numbers are split */

/* Return the end of the word that starts at `at`, which is before `end`. */
const uint8_t *next_word(int pattern, const CharTable *chars, const uint8_t *at, const uint8_t *end, MissingPages *missing);
#endif
