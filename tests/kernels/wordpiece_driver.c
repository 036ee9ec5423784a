/* Answers calls of the WordPiece code over standard input and output, so that a process under emulation can be asked.
 *
 * A call is a letter and its numbers, then its arrays, each with its size in bytes before it. All numbers are 64 bits,
 * little-endian. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Vocabulary Vocabulary;
Vocabulary *cenote_wordpiece_new(const uint8_t *, const uint64_t *, const int32_t *, uint64_t, const uint8_t *, uint64_t, int32_t,
                                  uint64_t, const uint8_t *, const uint64_t *, uint64_t, const uint8_t *, const uint64_t *, uint64_t);
int cenote_wordpiece_page(Vocabulary *, uint64_t, const void *);
int64_t cenote_wordpiece_encode(const Vocabulary *, const uint8_t *, int64_t *, int64_t, int, int32_t *, int64_t *, uint8_t *);
void cenote_wordpiece_free(Vocabulary *);

enum { PAGES = 0x1100 };

static void read_all(void *to, size_t bytes) {
    if (fread(to, 1, bytes, stdin) != bytes) exit(2);
}

static int64_t number(void) {
    int64_t value;
    read_all(&value, sizeof value);
    return value;
}

static void *array(void) {
    const int64_t bytes = number();
    void *data = malloc(bytes + 1);
    if (!data) exit(3);
    read_all(data, bytes);
    return data;
}

static void answer(const void *data, size_t bytes) {
    if (fwrite(data, 1, bytes, stdout) != bytes) exit(4);
}

static void answer_number(int64_t value) { answer(&value, sizeof value); }

static Vocabulary *create(void) {
    const int64_t count = number(), prefix_length = number(), unknown = number(), max_letters = number();
    const int64_t num_written = number(), num_read = number();
    void *given[8];
    for (int i = 0; i < 8; i++) given[i] = array();
    Vocabulary *made = cenote_wordpiece_new(given[0], given[1], given[2], count, given[3], prefix_length, (int32_t)unknown, max_letters,
                                             given[4], given[5], num_written, given[6], given[7], num_read);
    for (int i = 0; i < 8; i++) free(given[i]);
    return made;
}

static void encode(const Vocabulary *vocabulary) {
    const int64_t count = number(), ascii = number(), room = number();
    uint8_t *text = array(), wanted[PAGES] = {0};
    int64_t *lengths = array(), *offsets = calloc(count + 1, sizeof *offsets);
    int32_t *ids = malloc(room * sizeof *ids);
    if (!offsets || !ids) exit(3);
    answer_number(cenote_wordpiece_encode(vocabulary, text, lengths, count, (int)ascii, ids, offsets, wanted));
    answer(lengths, count * sizeof *lengths);
    answer(offsets, (count + 1) * sizeof *offsets);
    answer(wanted, sizeof wanted);
    answer(ids, offsets[count] * sizeof *ids);
    free(text), free(lengths), free(offsets), free(ids);
}

int main(void) {
    Vocabulary *vocabulary = NULL;
    for (int call; (call = getchar()) != EOF; fflush(stdout)) {
        if (call == 'n') {
            vocabulary = create();
            answer_number(vocabulary != NULL);
        } else if (call == 'p') {
            const int64_t page = number();
            void *letters = array();
            answer_number(cenote_wordpiece_page(vocabulary, page, letters));
            free(letters);
        } else if (call == 'e')
            encode(vocabulary);
        else
            return 5;
    }
    cenote_wordpiece_free(vocabulary);
    return 0;
}
