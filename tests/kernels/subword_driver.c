/* Runs functions of the BPE and Unigram code on requests from standard input, so that the test can call it in an emulated process. */
#include "../../cenote/inputs/subword/encoder.h"
#include "driver.h"

enum { PAGES = 0x1100 };

/* The request has the specification as Python has it, then its arrays in the order of the fields. */
static Encoder *create(void) {
    SubwordSpec *sent = read_array(), spec = *sent;
    const void **fields[] = {
        (const void **)&spec.pieces,           (const void **)&spec.piece_ends,
        (const void **)&spec.scores,           (const void **)&spec.piece_ids,
        (const void **)&spec.byte_ids,         (const void **)&spec.merges,
        (const void **)&spec.char_codes,       (const void **)&spec.char_ids,
        (const void **)&spec.raw_added,        (const void **)&spec.raw_added_ends,
        (const void **)&spec.raw_added_ids,    (const void **)&spec.normalized_added,
        (const void **)&spec.normalized_added_ends, (const void **)&spec.normalized_added_ids,
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) *fields[i] = read_array();
    return cenote_subword_new(&spec);
}

static void encode(Encoder *encoder) {
    const int64_t count = read_integer(), ascii = read_integer(), is_normalized = read_integer(), max_ids = read_integer();
    uint8_t *text = read_array(), missing_pages[PAGES] = {0};
    int64_t *lengths = read_array(), *offsets = calloc(count + 1, sizeof *offsets);
    int32_t *ids = malloc(max_ids * sizeof *ids);
    if (!offsets || !ids) exit(3);
    write_integer(cenote_subword_encode(encoder, text, lengths, count, (int)ascii, (int)is_normalized, ids, max_ids, offsets,
                                        missing_pages));
    write_all(lengths, count * sizeof *lengths);
    write_all(offsets, (count + 1) * sizeof *offsets);
    write_all(missing_pages, sizeof missing_pages);
    write_all(ids, offsets[count] * sizeof *ids);
    free(text), free(lengths), free(offsets), free(ids);
}

int main(void) {
    Encoder *encoder = NULL;
    for (int call; (call = getchar()) != EOF; fflush(stdout)) {
        if (call == 'n') {
            encoder = create();
            write_integer(encoder != NULL);
        } else if (call == 'p') {
            const int64_t page = read_integer();
            void *infos = read_array();
            write_integer(cenote_subword_page(encoder, (uint64_t)page, infos));
            free(infos);
        } else if (call == 'e')
            encode(encoder);
        else
            return 5;
    }
    cenote_subword_free(encoder);
    return 0;
}
