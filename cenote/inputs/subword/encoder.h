/* Functions that Python calls. */
#ifndef CENOTE_ENCODER_H
#define CENOTE_ENCODER_H
#include <stdint.h>

/* Arguments of cenote_subword_new; library.py has the same structure. */
typedef struct {
    int32_t algorithm, pattern, adds_prefix_space, is_nfc, matches_words, splits;
    int32_t has_char_map, strips_before, strips_after, collapses_spaces, splits_spaces, prefix;
    int32_t unk_id, has_byte_fallback;
    double unk_score;
    const uint8_t *pieces;
    const uint64_t *piece_ends;
    const double *scores;
    const int32_t *piece_ids, *byte_ids, *merges;
    const uint32_t *char_codes;
    const int32_t *char_ids;
    int64_t num_pieces, num_merges, num_chars;
    const uint8_t *raw_added;
    const uint64_t *raw_added_ends;
    const int32_t *raw_added_ids;
    int64_t num_raw_added;
    const uint8_t *normalized_added;
    const uint64_t *normalized_added_ends;
    const int32_t *normalized_added_ids;
    int64_t num_normalized_added;
} SubwordSpec;

typedef struct Encoder Encoder;

/* Returns NULL if out of memory. */
Encoder *cenote_subword_new(const SubwordSpec *spec);

/* Set the properties of 256 characters, as CharInfo; a page is set once. Returns 0 if out of memory. */
int cenote_subword_page(Encoder *encoder, uint64_t page, const void *infos);

/* Encode concatenated UTF-8 texts, which are followed by PADDING_BYTES bytes; `lengths` are in characters. `is_normalized`:
 * the library has normalized them. Sets the length of every text that cannot be encoded here to USE_LIBRARY or
 * NORMALIZE_FIRST, and returns the number of those texts; PAGES_MISSING (set in `missing_pages`), OUT_OF_MEMORY or
 * IDS_TOO_SMALL (`max_ids` ids are too few) if the call has to be repeated. */
int64_t cenote_subword_encode(Encoder *encoder, const uint8_t *text, int64_t *lengths, int64_t count, int ascii, int is_normalized,
                              int32_t *ids, int64_t max_ids, int64_t *offsets, uint8_t *missing_pages);
void cenote_subword_free(Encoder *encoder);
#endif
