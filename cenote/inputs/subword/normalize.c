/* NFC check, and the normalization of SentencePiece tokenizers.
 *
 * The precompiled character map replaces characters, but also graphemes of several characters with less than six bytes:
 * where that might happen, the library normalizes the text.
 */
#include "normalize.h"

enum { MIN_UNMAPPED_GRAPHEME_BYTES = 6, LEFT = 1, RIGHT = 2, META_SPACE = 0x2581 };

int may_change_in_nfc(const CharTable *chars, const uint8_t *at, const uint8_t *end, MissingPages *missing) {
    for (int before = 0; at < end;) {
        if (*at < 0x80) {
            before = 0, at++;
            continue;
        }
        const CharInfo *info = char_info(chars, code_point(&at), missing);
        if (info->flags & UNCERTAIN || (info->combining_class && info->combining_class < before)) return 1;
        before = info->combining_class;
    }
    return 0;
}

typedef struct {
    const Normalization *how;
    uint8_t *start, *to, *after_last_word; /* the latter: where the text ends if white space at its end is stripped */
    int after_space, at_word_start;
} Output;

static inline void write_space(Output *output) {
    const Normalization *how = output->how;
    if (how->splits_spaces) {
        output->at_word_start = 1;
        return;
    }
    const int skipped = (how->strips_after & LEFT && !output->after_last_word) || (how->collapses_spaces && output->after_space);
    if (!skipped) *output->to++ = ' ';
    output->after_space = 1;
}

static inline void write_char(Output *output, const uint8_t *bytes, int length, int is_space) {
    if (is_space && *bytes == ' ') {
        write_space(output);
        return;
    }
    if (is_space && output->how->splits_spaces) {
        output->at_word_start = 1;
        return;
    }
    const int is_meta = length == 3 && bytes[0] == 0xe2 && bytes[1] == 0x96 && bytes[2] == 0x81;
    output->after_space = 0;
    if (is_space && output->how->strips_after & LEFT && !output->after_last_word) return;
    if (output->at_word_start && !is_meta) *output->to++ = ' ';
    output->at_word_start = 0;
    if (is_meta) *output->to++ = ' ';
    else memcpy(output->to, bytes, (uint64_t)length), output->to += length;
    if (!is_space) output->after_last_word = output->to;
}

static void strip(const Normalization *how, const CharTable *chars, const uint8_t **at, const uint8_t **end, MissingPages *missing) {
    while (how->strips_before & LEFT && *at < *end) {
        const uint8_t *next = *at;
        if (!(char_info(chars, code_point(&next), missing)->flags & SPACE)) break;
        *at = next;
    }
    while (how->strips_before & RIGHT && *at < *end) {
        const uint8_t *last = *end - 1;
        while ((*last & 0xc0) == 0x80) last--;
        const uint8_t *start = last;
        if (!(char_info(chars, code_point(&last), missing)->flags & SPACE)) break;
        *end = start;
    }
}

static uint8_t *finish(Output *output, int is_first) {
    const Normalization *how = output->how;
    if (how->strips_after & RIGHT) output->to = output->after_last_word ? output->after_last_word : output->start;
    if (output->to == output->start || how->splits_spaces || how->prefix == KEEP_PREFIX) return output->to;
    if (how->prefix == ADD_FIRST_PREFIX && !is_first) return output->to;
    if (how->prefix != ALWAYS_ADD_PREFIX && *output->start == ' ') return output->to;
    memmove(output->start + 1, output->start, (uint64_t)(output->to - output->start));
    *output->start = ' ';
    return output->to + 1;
}

uint8_t *normalize(const Normalization *how, const CharTable *chars, const uint8_t *at, const uint8_t *end, int is_first,
                   uint8_t *to, MissingPages *missing) {
    Output output = {.how = how, .start = to, .to = to, .at_word_start = how->splits_spaces};
    strip(how, chars, &at, &end, missing);
    for (int flags_before = 0, length_before = 0, byte_before = 0; at < end;) {
        const uint8_t *start = at;
        const CharInfo *info = char_info(chars, code_point(&at), missing);
        const int length = (int)(at - start), flags = how->has_char_map ? info->flags : info->flags & SPACE;
        if (flags & UNCERTAIN) return NULL;
        if (flags_before & STARTS_KEY && length_before + length < MIN_UNMAPPED_GRAPHEME_BYTES &&
            (flags & JOINS || flags_before & JOINS_NEXT || (byte_before == '\r' && *start == '\n')))
            return NULL;
        if (!(flags & REPLACED)) write_char(&output, start, length, flags & SPACE);
        for (int i = 0, bytes; flags & REPLACED && i < info->length; i += bytes) {
            bytes = char_bytes(info->replacement[i]);
            write_char(&output, info->replacement + i, bytes, info->replacement[i] == ' ');
        }
        flags_before = flags, length_before = length, byte_before = *start;
    }
    return finish(&output, is_first);
}
