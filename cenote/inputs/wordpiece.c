/* Texts to token ids as BERT's tokenizers do it: letters made plain, words split off, the longest known pieces taken.
 *
 * What becomes of a letter is not decided here. Pages of 256 letters are filled in from outside, by asking the library
 * whose results must be met; a text with a letter for which that was not certain is left to the library, and so is one
 * in which an added token is written out. A letter is a Unicode code point, and every length is in bytes unless it says
 * otherwise. Nothing here is changed by encoding, so any number of threads may do it.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { PAGES = 0x1100, SLACK = 64, ROOM = 16384 };
enum { IN_WORD, SPACE, ALONE, GONE, UNSURE }; /* ALONE is a word by itself, as a comma is */

/* What becomes of one letter. */
typedef struct {
    uint8_t kind, length, num_letters; /* of the bytes; num_letters without the spaces */
    uint8_t before, after;             /* spaces around one that is ALONE */
    uint8_t bytes[11];
} Letter;

/* A piece of the vocabulary, found by its text. */
typedef struct {
    uint64_t head; /* the first eight bytes */
    uint32_t key;  /* twice its length, and one more when it goes on with a word; 0 in a slot that is free */
    int32_t id;
} Slot;

typedef struct {
    uint8_t *bytes;
    uint64_t *ends;
    uint64_t count;
    uint8_t firsts[256];
    int num_firsts;
} Phrases;

typedef struct {
    Slot *slots;
    uint32_t *tails; /* of every slot, where the bytes after its head are */
    uint8_t *bytes;
    uint64_t mask, longest[2]; /* of the pieces that begin a word, and of those that go on with one */
    uint64_t max_word_letters;
    int32_t unknown;
    uint8_t plain[256]; /* of the bytes that are letters of words: what they become */
    Letter *pages[PAGES];
    Phrases written, read; /* added tokens: as in the text, and as in what the letters become */
} Vocabulary;

static inline uint64_t first_bytes(const uint8_t *at, uint64_t length) {
    uint64_t word;
    memcpy(&word, at, 8);
    return length >= 8 ? word : word & (UINT64_MAX >> (64 - 8 * length)); /* little-endian */
}

static inline uint64_t hash(const uint8_t *at, uint64_t length, uint64_t key) {
    const uint64_t factor = 0x9e3779b97f4a7c15;
    uint64_t sum = key * factor;
    for (; length > 8; at += 8, length -= 8) {
        sum = (sum ^ first_bytes(at, 8)) * factor;
        sum ^= sum >> 29;
    }
    sum = (sum ^ first_bytes(at, length)) * factor;
    return sum ^ sum >> 32;
}

/* The slot of a piece, or the free one where it would be. */
static inline uint64_t find(const Vocabulary *v, const uint8_t *at, uint64_t length, int goes_on) {
    uint64_t key = 2 * length + goes_on, head = first_bytes(at, length), slot = hash(at, length, key) & v->mask;
    for (; v->slots[slot].key; slot = (slot + 1) & v->mask)
        if (v->slots[slot].key == key && v->slots[slot].head == head &&
            (length <= 8 || !memcmp(v->bytes + v->tails[slot], at + 8, length - 8)))
            break;
    return slot;
}

static void add(Vocabulary *v, uint64_t start, uint64_t length, int goes_on, int32_t id) {
    if (!length) return;
    uint64_t slot = find(v, v->bytes + start, length, goes_on);
    v->slots[slot] = (Slot){first_bytes(v->bytes + start, length), (uint32_t)(2 * length + goes_on), id};
    v->tails[slot] = (uint32_t)(start + 8);
    if (length > v->longest[goes_on]) v->longest[goes_on] = length;
}

static int copy_phrases(Phrases *to, const uint8_t *bytes, const uint64_t *ends, uint64_t count) {
    uint64_t length = count ? ends[count - 1] : 0;
    to->bytes = malloc(length + 1), to->ends = malloc((count + 1) * sizeof *ends), to->count = count;
    if (!to->bytes || !to->ends) return 0;
    memcpy(to->bytes, bytes, length), memcpy(to->ends, ends, count * sizeof *ends);
    for (uint64_t i = 0, start = 0; i < count; start = ends[i++])
        if (!memchr(to->firsts, bytes[start], to->num_firsts)) to->firsts[to->num_firsts++] = bytes[start];
    return 1;
}

void cenote_word_piece_free(Vocabulary *v) {
    if (!v) return;
    for (int page = 0; page < PAGES; page++) free(v->pages[page]);
    free(v->slots), free(v->tails), free(v->bytes);
    free(v->written.bytes), free(v->written.ends), free(v->read.bytes), free(v->read.ends);
    free(v);
}

/* `ends` are those of the tokens in `bytes`; `prefix` marks the tokens that go on with a word. NULL: no memory. */
Vocabulary *cenote_word_piece_new(const uint8_t *bytes, const uint64_t *ends, const int32_t *ids, uint64_t count,
                                  const uint8_t *prefix, uint64_t prefix_length, int32_t unknown,
                                  uint64_t max_word_letters, const uint8_t *written, const uint64_t *written_ends,
                                  uint64_t num_written, const uint8_t *read, const uint64_t *read_ends,
                                  uint64_t num_read) {
    Vocabulary *v = calloc(1, sizeof *v);
    if (!v) return NULL;
    uint64_t length = count ? ends[count - 1] : 0, size = 1024;
    while (size < 4 * count) size *= 2; /* every token is in at most twice, so half stays free */
    v->slots = calloc(size, sizeof *v->slots), v->tails = calloc(size, sizeof *v->tails);
    v->bytes = calloc(length + SLACK, 1);
    if (!v->slots || !v->tails || !v->bytes || !copy_phrases(&v->written, written, written_ends, num_written) ||
        !copy_phrases(&v->read, read, read_ends, num_read)) {
        cenote_word_piece_free(v);
        return NULL;
    }
    memcpy(v->bytes, bytes, length);
    v->mask = size - 1, v->unknown = unknown, v->max_word_letters = max_word_letters;
    for (uint64_t i = 0, start = 0; i < count; start = ends[i++]) {
        add(v, start, ends[i] - start, 0, ids[i]);
        if (ends[i] - start >= prefix_length && !memcmp(bytes + start, prefix, prefix_length))
            add(v, start + prefix_length, ends[i] - start - prefix_length, 1, ids[i]);
    }
    return v;
}

/* Say what becomes of 256 letters; a page is filled in once. 0: no memory. */
int cenote_word_piece_page(Vocabulary *v, uint64_t page, const Letter *letters) {
    Letter *own = malloc(256 * sizeof *own);
    if (!own) return 0;
    memcpy(own, letters, 256 * sizeof *own);
    if (page == 0)
        for (int byte = 0; byte < 128; byte++)
            v->plain[byte] = own[byte].kind == IN_WORD && own[byte].length == 1 ? own[byte].bytes[0] : 0;
    __atomic_store_n(&v->pages[page], own, __ATOMIC_RELEASE); /* others may be reading */
    return 1;
}

static int holds(const Phrases *phrases, const uint8_t *start, const uint8_t *end) {
    for (int i = 0; i < phrases->num_firsts; i++)
        for (const uint8_t *at = start; at < end && (at = memchr(at, phrases->firsts[i], end - at)); at++)
            for (uint64_t j = 0, from = 0; j < phrases->count; from = phrases->ends[j++]) {
                uint64_t length = phrases->ends[j] - from;
                if (length <= (uint64_t)(end - at) && !memcmp(at, phrases->bytes + from, length)) return 1;
            }
    return 0;
}

/* The longest piece that begins the word, then the longest that goes on with it, and so on to its end. */
static int32_t *pieces(const Vocabulary *v, const uint8_t *word, uint64_t length, uint64_t num_letters, int32_t *ids) {
    int32_t *first = ids;
    if (num_letters > v->max_word_letters) length = 0, *ids++ = v->unknown;
    for (uint64_t at = 0, taken; at < length; at += taken) {
        const Slot *slot = NULL;
        taken = length - at < v->longest[at > 0] ? length - at : v->longest[at > 0];
        for (; taken; taken--) {
            if (at + taken < length && (word[at + taken] & 0xc0) == 0x80) continue; /* within a letter */
            slot = &v->slots[find(v, word + at, taken, at > 0)];
            if (slot->key) break;
        }
        if (!taken) {
            *first = v->unknown;
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

/* The ids of one text; NULL where the library must be asked. `room` has three bytes for each of the text, and slack. */
static int32_t *encode(const Vocabulary *v, const uint8_t *text, const uint8_t *end, uint8_t *room, int32_t *ids,
                       uint8_t *wanted, int *any_wanted) {
    const uint8_t *at = text;
    uint8_t *word = room, *to = room;
    uint64_t num_letters = 0; /* of the word so far */
    while (at < end) {
        uint8_t *from = to;
        for (uint8_t plain; at < end && (plain = v->plain[*at]); at++) *to++ = plain;
        num_letters += to - from;
        if (at == end) break;
        uint32_t code = code_point(&at);
        const Letter *page = __atomic_load_n(&v->pages[code >> 8], __ATOMIC_ACQUIRE);
        if (!page) { /* go on, to learn of all pages that are wanted */
            wanted[code >> 8] = 1, *any_wanted = 1;
            continue;
        }
        const Letter *letter = &page[code & 0xff];
        if (letter->kind == UNSURE) return NULL;
        if (letter->kind != IN_WORD && letter->kind != GONE) {
            if (to > word) ids = pieces(v, word, to - word, num_letters, ids);
            word = to + letter->length, num_letters = 0;
        }
        memcpy(to, letter->bytes, sizeof letter->bytes);
        if (letter->kind == IN_WORD) num_letters += letter->num_letters;
        if (letter->kind == ALONE)
            ids = pieces(v, to + letter->before, letter->length - letter->before - letter->after, letter->num_letters,
                         ids);
        to += letter->length;
    }
    if (to > word) ids = pieces(v, word, to - word, num_letters, ids);
    return holds(&v->written, text, end) || holds(&v->read, room, to) ? NULL : ids;
}

/* The ids of texts that stand one after the other in UTF-8; `lengths` are in letters. There is room for as many ids as
 * there are bytes. The length of a text that the library must read becomes -1; how many those are is returned, or
 * -1: pages are wanted first, -2: no memory. */
int64_t cenote_word_piece_encode(const Vocabulary *v, const uint8_t *text, int64_t *lengths, int64_t count, int ascii,
                                 int32_t *ids, int64_t *offsets, uint8_t *wanted) {
    uint8_t small[ROOM], *room = small;
    int32_t *next = ids;
    int64_t longest = 0, num_left = 0;
    int any_wanted = 0;
    for (int64_t i = 0; i < count; i++) longest = lengths[i] > longest ? lengths[i] : longest;
    uint64_t size = 3 * (ascii ? 1 : 4) * (uint64_t)longest + SLACK;
    if (size > ROOM && !(room = malloc(size))) return -2;
    offsets[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *end = text + lengths[i];
        if (!ascii) {
            int64_t letters = lengths[i];
            for (end = text; letters; letters--) end += *end < 0x80 ? 1 : *end < 0xe0 ? 2 : *end < 0xf0 ? 3 : 4;
        }
        int32_t *after = encode(v, text, end, room, next, wanted, &any_wanted);
        if (after) next = after;
        else lengths[i] = -1, num_left++;
        offsets[i + 1] = next - ids;
        text = end;
    }
    if (room != small) free(room);
    return any_wanted ? -1 : num_left;
}
