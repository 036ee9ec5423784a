/* WordPiece encoder of BERT tokenizers: normalize characters, split words, match the longest pieces greedily.
 *
 * The normalization of characters comes from outside: wordpiece.py fills pages of 256 characters with the results of
 * the `tokenizers` library. A text with a character whose normalization depends on its context is left to the library
 * (fallback), as is a text that contains an added token. A character is a Unicode code point; lengths are in bytes
 * unless stated otherwise. Encoding does not modify the vocabulary, so threads can share it.
 */
#include "subword/added_tokens.h"
#include "subword/pieces.h"

enum { STACK_SCRATCH_BYTES = 16384 };
enum { IN_WORD, SPACE, PUNCTUATION, REMOVED, FALLBACK }; /* PUNCTUATION: a word of its own, e.g. a comma */

/* Normalization of one character. */
typedef struct {
    uint8_t kind, length, num_chars; /* length of `bytes`; num_chars does not count spaces */
    uint8_t before, after;           /* spaces around PUNCTUATION */
    uint8_t bytes[11];
} CharInfo;

typedef struct {
    Pieces pieces;
    uint64_t longest[2]; /* longest[is_continuation]: length of the longest piece */
    uint64_t max_word_chars;
    int32_t unk_id;
    uint8_t ascii_normalized[256]; /* normalized byte of an ASCII word character, else 0 */
    CharInfo *pages[PAGES];
    AddedTokens raw_added, normalized_added; /* added tokens matched in the text, and in the normalized text */
} Vocabulary;

static void add_longest(Vocabulary *v, uint64_t start, uint64_t length, int is_continuation, int32_t id) {
    add_piece(&v->pieces, start, length, is_continuation, id);
    if (length > v->longest[is_continuation]) v->longest[is_continuation] = length;
}

void cenote_wordpiece_free(Vocabulary *v) {
    if (!v) return;
    for (int page = 0; page < PAGES; page++) free(v->pages[page]);
    free_pieces(&v->pieces), free_added_tokens(&v->raw_added), free_added_tokens(&v->normalized_added);
    free(v);
}

/* Build a vocabulary. `ends`: end of each token in `bytes`; `prefix`: prefix of continuation tokens ("##").
 * Returns NULL if out of memory. */
Vocabulary *cenote_wordpiece_new(const uint8_t *bytes, const uint64_t *ends, const int32_t *ids, uint64_t count,
                                  const uint8_t *prefix, uint64_t prefix_length, int32_t unk_id,
                                  uint64_t max_word_chars, const uint8_t *raw_added, const uint64_t *raw_added_ends,
                                  uint64_t num_raw_added, const uint8_t *normalized_added, const uint64_t *normalized_added_ends,
                                  uint64_t num_normalized_added) {
    Vocabulary *v = calloc(1, sizeof *v);
    if (!v) return NULL;
    /* every token is added at most twice */
    if (!allocate_pieces(&v->pieces, bytes, count ? ends[count - 1] : 0, 2 * count) ||
        !copy_added_tokens(&v->raw_added, raw_added, raw_added_ends, NULL, num_raw_added) ||
        !copy_added_tokens(&v->normalized_added, normalized_added, normalized_added_ends, NULL, num_normalized_added)) {
        cenote_wordpiece_free(v);
        return NULL;
    }
    v->unk_id = unk_id, v->max_word_chars = max_word_chars;
    for (uint64_t i = 0, start = 0; i < count; start = ends[i++]) {
        add_longest(v, start, ends[i] - start, 0, ids[i]);
        if (ends[i] - start >= prefix_length && !memcmp(bytes + start, prefix, prefix_length))
            add_longest(v, start + prefix_length, ends[i] - start - prefix_length, 1, ids[i]);
    }
    return v;
}

/* Set the normalization of 256 characters; a page is set once. Returns 0 if out of memory. */
int cenote_wordpiece_page(Vocabulary *v, uint64_t page, const CharInfo *chars) {
    CharInfo *page_copy = malloc(256 * sizeof *page_copy);
    if (!page_copy) return 0;
    memcpy(page_copy, chars, 256 * sizeof *page_copy);
    if (page == 0)
        for (int byte = 0; byte < 128; byte++)
            v->ascii_normalized[byte] = page_copy[byte].kind == IN_WORD && page_copy[byte].length == 1 ? page_copy[byte].bytes[0] : 0;
    __atomic_store_n(&v->pages[page], page_copy, __ATOMIC_RELEASE); /* other threads may be encoding */
    return 1;
}

/* Greedy longest-match-first: append the ids of the pieces of a word, or unk_id, and return the new end of `ids`. */
static int32_t *encode_word(const Vocabulary *v, const uint8_t *word, uint64_t length, uint64_t num_chars, int32_t *ids) {
    int32_t *first = ids;
    if (num_chars > v->max_word_chars) length = 0, *ids++ = v->unk_id;
    for (uint64_t at = 0, piece_length; at < length; at += piece_length) {
        const PieceSlot *slot = NULL;
        piece_length = length - at < v->longest[at > 0] ? length - at : v->longest[at > 0];
        for (; piece_length; piece_length--) {
            if (at + piece_length < length && (word[at + piece_length] & 0xc0) == 0x80) continue; /* inside a character */
            slot = &v->pieces.slots[find_piece(&v->pieces, word + at, piece_length, at > 0)];
            if (slot->key) break;
        }
        if (!piece_length) {
            *first = v->unk_id;
            return first + 1;
        }
        *ids++ = slot->id;
    }
    return ids;
}

/* Append the ids of one text and return the new end of `ids`; NULL if the library must encode it.
 * `scratch` has three bytes per byte of text, plus PADDING_BYTES. */
static int32_t *encode(const Vocabulary *v, const uint8_t *text, const uint8_t *end, uint8_t *scratch, int32_t *ids,
                       uint8_t *missing_pages, int *any_missing) {
    const uint8_t *at = text;
    uint8_t *word = scratch, *to = scratch;
    uint64_t num_chars = 0; /* of the current word */
    while (at < end) {
        uint8_t *from = to;
        for (uint8_t ascii_normalized; at < end && (ascii_normalized = v->ascii_normalized[*at]); at++) *to++ = ascii_normalized;
        num_chars += to - from;
        if (at == end) break;
        uint32_t code = code_point(&at);
        const CharInfo *page = __atomic_load_n(&v->pages[code >> 8], __ATOMIC_ACQUIRE);
        if (!page) { /* continue, to collect all missing pages */
            missing_pages[code >> 8] = 1, *any_missing = 1;
            continue;
        }
        const CharInfo *char_info = &page[code & 0xff];
        if (char_info->kind == FALLBACK) return NULL;
        if (char_info->kind != IN_WORD && char_info->kind != REMOVED) {
            if (to > word) ids = encode_word(v, word, to - word, num_chars, ids);
            word = to + char_info->length, num_chars = 0;
        }
        memcpy(to, char_info->bytes, sizeof char_info->bytes);
        if (char_info->kind == IN_WORD) num_chars += char_info->num_chars;
        if (char_info->kind == PUNCTUATION)
            ids = encode_word(v, to + char_info->before, char_info->length - char_info->before - char_info->after, char_info->num_chars,
                         ids);
        to += char_info->length;
    }
    if (to > word) ids = encode_word(v, word, to - word, num_chars, ids);
    return contains_added_token(&v->raw_added, text, end) || contains_added_token(&v->normalized_added, scratch, to) ? NULL : ids;
}

/* Encode concatenated UTF-8 texts, which are followed by PADDING_BYTES bytes; `lengths` are in characters. `ids` has
 * space for one id per byte. Sets the length of every text that the library must encode to -1, and returns the number of those texts;
 * returns -1 if pages are missing (set in `missing_pages`), -2 if out of memory. */
int64_t cenote_wordpiece_encode(const Vocabulary *v, const uint8_t *text, int64_t *lengths, int64_t count, int ascii,
                                 int32_t *ids, int64_t *offsets, uint8_t *missing_pages) {
    uint8_t stack_scratch[STACK_SCRATCH_BYTES], *scratch = stack_scratch;
    int32_t *next = ids;
    int64_t longest = 0, num_fallback = 0;
    int any_missing = 0;
    for (int64_t i = 0; i < count; i++) longest = lengths[i] > longest ? lengths[i] : longest;
    uint64_t size = 3 * (ascii ? 1 : 4) * (uint64_t)longest + PADDING_BYTES;
    if (size > STACK_SCRATCH_BYTES && !(scratch = malloc(size))) return -2;
    offsets[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *end = ascii ? text + lengths[i] : skip_chars(text, lengths[i]);
        int32_t *after = encode(v, text, end, scratch, next, missing_pages, &any_missing);
        if (after) next = after;
        else lengths[i] = -1, num_fallback++;
        offsets[i + 1] = next - ids;
        text = end;
    }
    if (scratch != stack_scratch) free(scratch);
    return any_missing ? -1 : num_fallback;
}
