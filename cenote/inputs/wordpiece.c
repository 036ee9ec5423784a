/* WordPiece encoder of BERT tokenizers: normalize characters, split words, match the longest pieces greedily.
 *
 * The normalization of characters comes from outside: wordpiece.py fills pages of 256 characters with the results of
 * the `tokenizers` library. A text with a character whose normalization depends on its context is left to the library
 * (fallback), as is a text that contains an added token. A character is a Unicode code point; lengths are in bytes
 * unless stated otherwise. Encoding does not modify the vocabulary, so threads can share it.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { PAGES = 0x1100, PADDING_BYTES = 64, STACK_SCRATCH_BYTES = 16384 };
enum { IN_WORD, SPACE, PUNCTUATION, REMOVED, FALLBACK }; /* PUNCTUATION: a word of its own, e.g. a comma */

/* Normalization of one character. */
typedef struct {
    uint8_t kind, length, num_chars; /* length of `bytes`; num_chars does not count spaces */
    uint8_t before, after;           /* spaces around PUNCTUATION */
    uint8_t bytes[11];
} CharInfo;

/* Hash table entry of a vocabulary piece. */
typedef struct {
    uint64_t head; /* the first eight bytes */
    uint32_t key;  /* 2 * length + is_continuation; 0: free slot */
    int32_t id;
} Slot;

typedef struct {
    uint8_t *bytes;
    uint64_t *ends;
    uint64_t count;
    uint8_t start_bytes[256];
    int num_start_bytes;
} AddedTokens;

typedef struct {
    Slot *slots;
    uint32_t *tails; /* [slot]: offset in `bytes` of the piece after its first eight bytes */
    uint8_t *bytes;
    uint64_t mask, longest[2]; /* longest[is_continuation]: length of the longest piece */
    uint64_t max_word_chars;
    int32_t unk_id;
    uint8_t ascii_normalized[256]; /* normalized byte of an ASCII word character, else 0 */
    CharInfo *pages[PAGES];
    AddedTokens raw_added, normalized_added; /* added tokens matched in the text, and in the normalized text */
} Vocabulary;

static inline uint64_t first_bytes(const uint8_t *at, uint64_t length) {
    uint64_t word;
    memcpy(&word, at, 8);
    return length >= 8 ? word : word & (UINT64_MAX >> (64 - 8 * length)); /* little-endian */
}

static inline uint64_t hash_bytes(const uint8_t *at, uint64_t length, uint64_t key) {
    const uint64_t factor = 0x9e3779b97f4a7c15;
    uint64_t sum = key * factor;
    for (; length > 8; at += 8, length -= 8) {
        sum = (sum ^ first_bytes(at, 8)) * factor;
        sum ^= sum >> 29;
    }
    sum = (sum ^ first_bytes(at, length)) * factor;
    return sum ^ sum >> 32;
}

/* Return the slot of a piece, or the free slot where it belongs. */
static inline uint64_t find_slot(const Vocabulary *v, const uint8_t *at, uint64_t length, int is_continuation) {
    uint64_t key = 2 * length + is_continuation, head = first_bytes(at, length), slot = hash_bytes(at, length, key) & v->mask;
    for (; v->slots[slot].key; slot = (slot + 1) & v->mask)
        if (v->slots[slot].key == key && v->slots[slot].head == head &&
            (length <= 8 || !memcmp(v->bytes + v->tails[slot], at + 8, length - 8)))
            break;
    return slot;
}

static void add_piece(Vocabulary *v, uint64_t start, uint64_t length, int is_continuation, int32_t id) {
    if (!length) return;
    uint64_t slot = find_slot(v, v->bytes + start, length, is_continuation);
    v->slots[slot] = (Slot){first_bytes(v->bytes + start, length), (uint32_t)(2 * length + is_continuation), id};
    v->tails[slot] = (uint32_t)(start + 8);
    if (length > v->longest[is_continuation]) v->longest[is_continuation] = length;
}

static int copy_added_tokens(AddedTokens *to, const uint8_t *bytes, const uint64_t *ends, uint64_t count) {
    uint64_t length = count ? ends[count - 1] : 0;
    to->bytes = malloc(length + 1), to->ends = malloc((count + 1) * sizeof *ends), to->count = count;
    if (!to->bytes || !to->ends) return 0;
    memcpy(to->bytes, bytes, length), memcpy(to->ends, ends, count * sizeof *ends);
    for (uint64_t i = 0, start = 0; i < count; start = ends[i++])
        if (!memchr(to->start_bytes, bytes[start], to->num_start_bytes)) to->start_bytes[to->num_start_bytes++] = bytes[start];
    return 1;
}

void cenote_wordpiece_free(Vocabulary *v) {
    if (!v) return;
    for (int page = 0; page < PAGES; page++) free(v->pages[page]);
    free(v->slots), free(v->tails), free(v->bytes);
    free(v->raw_added.bytes), free(v->raw_added.ends), free(v->normalized_added.bytes), free(v->normalized_added.ends);
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
    uint64_t length = count ? ends[count - 1] : 0, size = 1024;
    while (size < 4 * count) size *= 2; /* every token is added at most twice, so at least half of the slots stay free */
    v->slots = calloc(size, sizeof *v->slots), v->tails = calloc(size, sizeof *v->tails);
    v->bytes = calloc(length + PADDING_BYTES, 1);
    if (!v->slots || !v->tails || !v->bytes || !copy_added_tokens(&v->raw_added, raw_added, raw_added_ends, num_raw_added) ||
        !copy_added_tokens(&v->normalized_added, normalized_added, normalized_added_ends, num_normalized_added)) {
        cenote_wordpiece_free(v);
        return NULL;
    }
    memcpy(v->bytes, bytes, length);
    v->mask = size - 1, v->unk_id = unk_id, v->max_word_chars = max_word_chars;
    for (uint64_t i = 0, start = 0; i < count; start = ends[i++]) {
        add_piece(v, start, ends[i] - start, 0, ids[i]);
        if (ends[i] - start >= prefix_length && !memcmp(bytes + start, prefix, prefix_length))
            add_piece(v, start + prefix_length, ends[i] - start - prefix_length, 1, ids[i]);
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

static int contains_any(const AddedTokens *token_set, const uint8_t *start, const uint8_t *end) {
    for (int i = 0; i < token_set->num_start_bytes; i++)
        for (const uint8_t *at = start; at < end && (at = memchr(at, token_set->start_bytes[i], end - at)); at++)
            for (uint64_t j = 0, from = 0; j < token_set->count; from = token_set->ends[j++]) {
                uint64_t length = token_set->ends[j] - from;
                if (length <= (uint64_t)(end - at) && !memcmp(at, token_set->bytes + from, length)) return 1;
            }
    return 0;
}

/* Greedy longest-match-first: append the ids of the pieces of a word, or unk_id, and return the new end of `ids`. */
static int32_t *encode_word(const Vocabulary *v, const uint8_t *word, uint64_t length, uint64_t num_chars, int32_t *ids) {
    int32_t *first = ids;
    if (num_chars > v->max_word_chars) length = 0, *ids++ = v->unk_id;
    for (uint64_t at = 0, piece_length; at < length; at += piece_length) {
        const Slot *slot = NULL;
        piece_length = length - at < v->longest[at > 0] ? length - at : v->longest[at > 0];
        for (; piece_length; piece_length--) {
            if (at + piece_length < length && (word[at + piece_length] & 0xc0) == 0x80) continue; /* inside a character */
            slot = &v->slots[find_slot(v, word + at, piece_length, at > 0)];
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

static inline uint32_t code_point(const uint8_t **at) {
    const uint8_t *p = *at;
    int more = p[0] < 0x80 ? 0 : p[0] < 0xe0 ? 1 : p[0] < 0xf0 ? 2 : 3;
    uint32_t code = more ? p[0] & (0x3f >> more) : p[0];
    for (int i = 1; i <= more; i++) code = code << 6 | (p[i] & 0x3f);
    *at = p + 1 + more;
    return code;
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
    return contains_any(&v->raw_added, text, end) || contains_any(&v->normalized_added, scratch, to) ? NULL : ids;
}

/* Encode concatenated UTF-8 texts; `lengths` are in characters. `ids` has space for one id per byte.
 * Sets the length of every text that the library must encode to -1, and returns the number of those texts;
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
        const uint8_t *end = text + lengths[i];
        if (!ascii) {
            int64_t chars = lengths[i];
            for (end = text; chars; chars--) end += *end < 0x80 ? 1 : *end < 0xe0 ? 2 : *end < 0xf0 ? 3 : 4;
        }
        int32_t *after = encode(v, text, end, scratch, next, missing_pages, &any_missing);
        if (after) next = after;
        else lengths[i] = -1, num_fallback++;
        offsets[i + 1] = next - ids;
        text = end;
    }
    if (scratch != stack_scratch) free(scratch);
    return any_missing ? -1 : num_fallback;
}
