/* Runs functions of the WordPiece code on requests from standard input, so that the test can call it in an emulated process. */
#include "driver.h"

typedef struct Vocabulary Vocabulary;
Vocabulary *cenote_wordpiece_new(const uint8_t *, const uint64_t *, const int32_t *, uint64_t, const uint8_t *, uint64_t, int32_t,
                                  uint64_t, const uint8_t *, const uint64_t *, uint64_t, const uint8_t *, const uint64_t *, uint64_t);
int cenote_wordpiece_page(Vocabulary *, uint64_t, const void *);
int64_t cenote_wordpiece_encode(const Vocabulary *, const uint8_t *, int64_t *, int64_t, int, int32_t *, int64_t *, uint8_t *);
void cenote_wordpiece_free(Vocabulary *);

enum { PAGES = 0x1100 };

static Vocabulary *create(void) {
    const int64_t count = read_integer(), prefix_length = read_integer(), unk_id = read_integer(), max_word_chars = read_integer();
    const int64_t num_raw_added = read_integer(), num_normalized_added = read_integer();
    void *arrays[8];
    for (int i = 0; i < 8; i++) arrays[i] = read_array();
    Vocabulary *vocabulary =
        cenote_wordpiece_new(arrays[0], arrays[1], arrays[2], count, arrays[3], prefix_length, (int32_t)unk_id, max_word_chars, arrays[4],
                             arrays[5], num_raw_added, arrays[6], arrays[7], num_normalized_added);
    for (int i = 0; i < 8; i++) free(arrays[i]);
    return vocabulary;
}

static void encode(const Vocabulary *vocabulary) {
    const int64_t count = read_integer(), ascii = read_integer(), capacity = read_integer();
    uint8_t *text = read_array(), missing_pages[PAGES] = {0};
    int64_t *lengths = read_array(), *offsets = calloc(count + 1, sizeof *offsets);
    int32_t *ids = malloc(capacity * sizeof *ids);
    if (!offsets || !ids) exit(3);
    write_integer(cenote_wordpiece_encode(vocabulary, text, lengths, count, (int)ascii, ids, offsets, missing_pages));
    write_all(lengths, count * sizeof *lengths);
    write_all(offsets, (count + 1) * sizeof *offsets);
    write_all(missing_pages, sizeof missing_pages);
    write_all(ids, offsets[count] * sizeof *ids);
    free(text), free(lengths), free(offsets), free(ids);
}

int main(void) {
    Vocabulary *vocabulary = NULL;
    for (int call; (call = getchar()) != EOF; fflush(stdout)) {
        if (call == 'n') {
            vocabulary = create();
            write_integer(vocabulary != NULL);
        } else if (call == 'p') {
            const int64_t page = read_integer();
            void *chars = read_array();
            write_integer(cenote_wordpiece_page(vocabulary, page, chars));
            free(chars);
        } else if (call == 'e')
            encode(vocabulary);
        else
            return 5;
    }
    cenote_wordpiece_free(vocabulary);
    return 0;
}
