/* Runs functions of the WordPiece code on requests from standard input, so that the test can call it in an emulated process. */
typedef struct Vocabulary Tokenizer;
#include "driver.h"

Tokenizer *cenote_wordpiece_new(const uint8_t *, const uint64_t *, const int32_t *, uint64_t, const uint8_t *, uint64_t, int32_t,
                                uint64_t, const uint8_t *, const uint64_t *, uint64_t, const uint8_t *, const uint64_t *, uint64_t);
int cenote_wordpiece_page(Tokenizer *, uint64_t, const void *);
int64_t cenote_wordpiece_encode(const Tokenizer *, const uint8_t *, int64_t *, int64_t, int, int32_t *, int64_t *, uint8_t *);
void cenote_wordpiece_free(Tokenizer *);

static Tokenizer *create(void) {
    const int64_t count = read_integer(), prefix_length = read_integer(), unk_id = read_integer(), max_word_chars = read_integer();
    const int64_t num_raw_added = read_integer(), num_normalized_added = read_integer();
    void *arrays[8];
    for (int i = 0; i < 8; i++) arrays[i] = read_array();
    Tokenizer *vocabulary =
        cenote_wordpiece_new(arrays[0], arrays[1], arrays[2], count, arrays[3], prefix_length, (int32_t)unk_id, max_word_chars, arrays[4],
                             arrays[5], num_raw_added, arrays[6], arrays[7], num_normalized_added);
    for (int i = 0; i < 8; i++) free(arrays[i]);
    return vocabulary;
}

static int add_page(Tokenizer *vocabulary, uint64_t page, const void *chars) { return cenote_wordpiece_page(vocabulary, page, chars); }

static int64_t encode(Tokenizer *vocabulary, const EncodeCall *call) {
    return cenote_wordpiece_encode(vocabulary, call->text, call->lengths, call->count, call->ascii, call->ids, call->offsets,
                                   call->missing_pages);
}

static void destroy(Tokenizer *vocabulary) { cenote_wordpiece_free(vocabulary); }
