/* Encoder of BPE and Unigram tokenizers: added tokens, normalization, words, and a cache of their ids.
 *
 * Calls share the vocabulary, which they do not modify; each takes a workspace of its own from a pool. Inside SentencePiece
 * tokenizers a space stands for U+2581: no other spaces are left in their texts.
 */
#include "encoder.h"
#include "added_tokens.h"
#include "bpe.h"
#include "normalize.h"
#include "split.h"
#include "unigram.h"

enum { BYTE_BPE, CHAR_BPE, UNIGRAM };
enum { EVERY_SPACE, AFTER_WORDS, NOWHERE }; /* where words of SentencePiece tokenizers start */
enum { MAX_WORKSPACES = 16 };
enum { USE_LIBRARY = -1, NORMALIZE_FIRST = -2 };                     /* of one text */
enum { PAGES_MISSING = -1, OUT_OF_MEMORY = -2, IDS_TOO_SMALL = -3 }; /* of a call */

struct Encoder {
    int algorithm, pattern, adds_prefix_space, is_nfc, splits;
    Normalization normalization, spaces_only; /* the latter: for texts that the library has normalized */
    Bpe bpe;
    Unigram unigram;
    CharTable chars;
    AddedTokens raw_added, normalized_added; /* matched in the text, and in the normalized text */
    Workspace *workspaces[MAX_WORKSPACES];
};

/* One call. */
typedef struct {
    Encoder *encoder;
    Workspace *workspace;
    MissingPages missing;
    int32_t *ids, *ids_end;
    int is_normalized, is_full; /* is_full: `ids` has too little space */
    int is_uncertain;           /* the library must normalize the text */
} Call;

void cenote_subword_free(Encoder *encoder) {
    if (!encoder) return;
    for (int i = 0; i < MAX_WORKSPACES; i++) free_workspace(encoder->workspaces[i]);
    free_bpe(&encoder->bpe), free_unigram(&encoder->unigram), free_chars(&encoder->chars);
    free_added_tokens(&encoder->raw_added), free_added_tokens(&encoder->normalized_added);
    free(encoder);
}

static int init_model(Encoder *encoder, const SubwordSpec *spec) {
    if (spec->algorithm == UNIGRAM) {
        encoder->unigram.unk_id = spec->unk_id, encoder->unigram.unk_score = spec->unk_score;
        encoder->unigram.has_byte_fallback = spec->has_byte_fallback;
        memcpy(encoder->unigram.byte_ids, spec->byte_ids, sizeof encoder->unigram.byte_ids);
        return init_unigram(&encoder->unigram, spec->pieces, spec->piece_ends, spec->scores, (uint64_t)spec->num_pieces);
    }
    Bpe *bpe = &encoder->bpe;
    bpe->is_byte_level = spec->algorithm == BYTE_BPE, bpe->matches_words = spec->matches_words;
    memcpy(bpe->byte_ids, spec->byte_ids, sizeof bpe->byte_ids);
    const uint64_t num_pieces = (uint64_t)spec->num_pieces;
    if (!allocate_pieces(&bpe->words, spec->pieces, num_pieces ? spec->piece_ends[num_pieces - 1] : 0, num_pieces)) return 0;
    for (uint64_t i = 0, start = 0; i < num_pieces; start = spec->piece_ends[i++])
        add_piece(&bpe->words, start, spec->piece_ends[i] - start, 0, spec->piece_ids[i]);
    return init_bpe(bpe, spec->merges, (uint64_t)spec->num_merges, spec->char_codes, spec->char_ids, (uint64_t)spec->num_chars);
}

Encoder *cenote_subword_new(const SubwordSpec *spec) {
    Encoder *encoder = calloc(1, sizeof *encoder);
    if (!encoder) return NULL;
    encoder->algorithm = spec->algorithm, encoder->pattern = spec->pattern, encoder->is_nfc = spec->is_nfc;
    encoder->adds_prefix_space = spec->adds_prefix_space, encoder->splits = spec->splits;
    encoder->normalization = (Normalization){spec->has_char_map,     spec->strips_before, spec->strips_after,
                                             spec->collapses_spaces, spec->splits_spaces, spec->prefix};
    const int prefix = spec->prefix == ALWAYS_ADD_PREFIX ? KEEP_PREFIX : spec->prefix; /* added by the normalizer */
    encoder->spaces_only = (Normalization){.splits_spaces = spec->splits_spaces, .prefix = prefix};
    if (!init_model(encoder, spec) ||
        !copy_added_tokens(&encoder->raw_added, spec->raw_added, spec->raw_added_ends, spec->raw_added_ids,
                           (uint64_t)spec->num_raw_added) ||
        !copy_added_tokens(&encoder->normalized_added, spec->normalized_added, spec->normalized_added_ends,
                           spec->normalized_added_ids, (uint64_t)spec->num_normalized_added)) {
        cenote_subword_free(encoder);
        return NULL;
    }
    return encoder;
}

int cenote_subword_page(Encoder *encoder, uint64_t page, const void *infos) { return set_page(&encoder->chars, page, infos); }

static Workspace *take_workspace(Encoder *encoder) {
    for (int i = 0; i < MAX_WORKSPACES; i++) {
        Workspace *workspace = __atomic_exchange_n(&encoder->workspaces[i], NULL, __ATOMIC_ACQ_REL);
        if (workspace) return workspace;
    }
    return new_workspace();
}

static void return_workspace(Encoder *encoder, Workspace *workspace) {
    trim(&workspace->text), trim(&workspace->arrays);
    for (int i = 0; i < MAX_WORKSPACES; i++) {
        Workspace *none = NULL;
        if (__atomic_compare_exchange_n(&encoder->workspaces[i], &none, workspace, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
    }
    free_workspace(workspace);
}

/* Append the ids of a word; returns 0 if it cannot be encoded here. */
static int encode_uncached_word(Call *call, const uint8_t *word, uint64_t length) {
    const Encoder *encoder = call->encoder;
    int32_t *next = encoder->algorithm == UNIGRAM ? encode_unigram_word(&encoder->unigram, call->workspace, word, length, call->ids)
                                                  : encode_bpe_word(&encoder->bpe, call->workspace, word, length, call->ids);
    if (next) call->ids = next;
    return next != NULL;
}

static int encode_word(Call *call, const uint8_t *word, uint64_t length) {
    if ((uint64_t)(call->ids_end - call->ids) < length + MAX_CACHED_IDS) {
        call->is_full = 1;
        return 0;
    }
    if (length > MAX_CACHED_BYTES) return encode_uncached_word(call, word, length);
    uint64_t bytes[MAX_CACHED_BYTES / 8];
    CachedWord *cached = find_cached_word(call->workspace, word, length, bytes);
    if (cached->length == length && !memcmp(cached->bytes, bytes, sizeof bytes)) {
        memcpy(call->ids, cached->ids, sizeof cached->ids);
        call->ids += cached->num_ids;
        return 1;
    }
    const int32_t *start = call->ids;
    if (!encode_uncached_word(call, word, length)) return 0;
    const int64_t num_ids = call->ids - start;
    if (num_ids <= MAX_CACHED_IDS) {
        memcpy(cached->bytes, bytes, sizeof bytes), memcpy(cached->ids, start, (uint64_t)num_ids * sizeof *start);
        cached->length = (uint8_t)length, cached->num_ids = (uint8_t)num_ids;
    }
    return 1;
}

static int encode_byte_level(Call *call, const uint8_t *at, const uint8_t *end, int is_first) {
    (void)is_first; /* every part gets a space */
    const Encoder *encoder = call->encoder;
    if (encoder->adds_prefix_space && at < end && *at != ' ') {
        const uint64_t length = (uint64_t)(end - at);
        uint8_t *copy = reserve(&call->workspace->text, length + 1 + PADDING_BYTES);
        if (!copy) return 0;
        *copy = ' ', memcpy(copy + 1, at, length), memset(copy + 1 + length, 0, PADDING_BYTES);
        at = copy, end = copy + 1 + length;
    }
    for (const uint8_t *next; at < end; at = next) {
        next = next_word(encoder->pattern, &encoder->chars, at, end, &call->missing);
        if (!encode_word(call, at, (uint64_t)(next - at))) return 0;
    }
    return 1;
}

/* Encode text in which spaces stand for U+2581. */
static int encode_spaced(Call *call, const uint8_t *at, const uint8_t *end) {
    const int splits = call->encoder->splits;
    for (const uint8_t *next; at < end; at = next) {
        for (next = at; splits == AFTER_WORDS && next < end && *next == ' ';) next++;
        if (next == at) next++;
        if (splits == NOWHERE || !(next = memchr(next, ' ', (uint64_t)(end - next)))) next = end;
        if (!encode_word(call, at, (uint64_t)(next - at))) return 0;
    }
    return 1;
}

typedef int EncodePart(Call *call, const uint8_t *at, const uint8_t *end, int is_first);

/* Encode the parts of a text between added tokens, and the tokens. */
static int encode_between(Call *call, const AddedTokens *tokens, const uint8_t *at, const uint8_t *end, int is_first,
                          EncodePart *encode_part) {
    AddedMatch match;
    for (; at < end && find_added_token(tokens, at, end, &match); at = match.end, is_first = 0) {
        if (match.start > at && !encode_part(call, at, match.start, is_first)) return 0;
        if (match.id < 0) return 0;
        if (call->ids == call->ids_end) {
            call->is_full = 1;
            return 0;
        }
        *call->ids++ = match.id;
    }
    return at == end || encode_part(call, at, end, is_first);
}

static int encode_byte_level_part(Call *call, const uint8_t *at, const uint8_t *end, int is_first) {
    return encode_between(call, &call->encoder->normalized_added, at, end, is_first, encode_byte_level);
}

static int encode_sentencepiece_part(Call *call, const uint8_t *at, const uint8_t *end, int is_first) {
    const Encoder *encoder = call->encoder;
    uint8_t *to = reserve(&call->workspace->text, 4 * (uint64_t)(end - at) + PADDING_BYTES);
    if (!to) return 0;
    const Normalization *how = call->is_normalized ? &encoder->spaces_only : &encoder->normalization;
    end = normalize(how, &encoder->chars, at, end, is_first, to, &call->missing);
    if (!end) call->is_uncertain = 1;
    /* the parts around an added token in normalized text depend on the normalizer: left to the library */
    return end && !contains_added_token(&encoder->normalized_added, to, end) && encode_spaced(call, to, end);
}

/* Append the ids of one text; returns 0, USE_LIBRARY or NORMALIZE_FIRST. */
static int encode_text(Call *call, const uint8_t *at, const uint8_t *end) {
    const Encoder *encoder = call->encoder;
    static const AddedTokens no_tokens = {0};
    /* a text that the library has normalized contained no added tokens */
    const AddedTokens *tokens = call->is_normalized ? &no_tokens : &encoder->raw_added;
    call->is_uncertain = encoder->is_nfc && !call->is_normalized && may_change_in_nfc(&encoder->chars, at, end, &call->missing);
    EncodePart *encode_part = encoder->algorithm == BYTE_BPE ? encode_byte_level_part : encode_sentencepiece_part;
    if (!call->is_uncertain && encode_between(call, tokens, at, end, 1, encode_part)) return 0;
    return call->is_uncertain && !contains_added_token(tokens, at, end) ? NORMALIZE_FIRST : USE_LIBRARY;
}

int64_t cenote_subword_encode(Encoder *encoder, const uint8_t *text, int64_t *lengths, int64_t count, int ascii, int is_normalized,
                              int32_t *ids, int64_t max_ids, int64_t *offsets, uint8_t *missing_pages) {
    Call call = {.encoder = encoder, .workspace = take_workspace(encoder), .missing = {missing_pages, 0}, .ids = ids,
                 .ids_end = ids + max_ids, .is_normalized = is_normalized};
    int64_t num_left = 0;
    if (!call.workspace) return OUT_OF_MEMORY;
    offsets[0] = 0;
    for (int64_t i = 0; i < count && !call.is_full; i++) {
        const uint8_t *end = ascii ? text + lengths[i] : skip_chars(text, lengths[i]);
        int32_t *start = call.ids;
        const int status = encode_text(&call, text, end);
        if (status) lengths[i] = status, num_left++, call.ids = start;
        offsets[i + 1] = call.ids - ids;
        text = end;
    }
    return_workspace(encoder, call.workspace);
    return call.missing.any ? PAGES_MISSING : call.is_full ? IDS_TOO_SMALL : num_left;
}
