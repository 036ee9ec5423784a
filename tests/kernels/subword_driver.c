/* Runs functions of the BPE and Unigram code on requests from standard input, so that the test can call it in an emulated process. */
#include "../../cenote/inputs/subword/encoder.h"

typedef Encoder Tokenizer;
#include "driver.h"

/* The request has the specification as Python has it, then its arrays in the order of the fields. */
static Tokenizer *create(void) {
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

static int add_page(Tokenizer *encoder, uint64_t page, const void *chars) { return cenote_subword_page(encoder, page, chars); }

static int64_t encode(Tokenizer *encoder, const EncodeCall *call) {
    return cenote_subword_encode(encoder, call->text, call->lengths, call->count, call->ascii, call->is_normalized, call->ids,
                                 call->max_ids, call->offsets, call->missing_pages);
}

static void destroy(Tokenizer *encoder) { cenote_subword_free(encoder); }
