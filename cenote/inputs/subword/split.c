/* The regular expressions that split texts for byte-level BPE, as hand-written scanners.
 *
 * GPT2: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * Qwen2 (ONE_DIGIT): (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * Llama 3 (THREE_DIGITS): the same with \p{N}{1,3}
 */
#include "split.h"

enum { CLASSES = LETTER | NUMBER | SPACE };

typedef struct {
    const CharTable *chars;
    const uint8_t *end;
    MissingPages *missing;
} Scanner;

/* Return the class of the character at `at` and store where it ends: LETTER, NUMBER, SPACE or 0. */
static inline int char_class(const Scanner *scanner, const uint8_t *at, const uint8_t **next) {
    if (*at < 0x80) {
        *next = at + 1;
        return scanner->chars->ascii_flags[*at] & CLASSES;
    }
    *next = at;
    return char_info(scanner->chars, code_point(next), scanner->missing)->flags & CLASSES;
}

/* Return the end of the run of one class, of at most `max_chars` characters. */
static inline const uint8_t *skip_class(const Scanner *scanner, const uint8_t *at, int class, uint64_t max_chars) {
    for (const uint8_t *next; max_chars && at < scanner->end && char_class(scanner, at, &next) == class; at = next) max_chars--;
    return at;
}

static inline uint8_t lower(uint8_t byte) { return byte >= 'A' && byte <= 'Z' ? byte + 32 : byte; }

/* Return the end of 's, 't, 're, 've, 'm, 'll or 'd, or NULL. */
static const uint8_t *skip_contraction(const Scanner *scanner, const uint8_t *at, int ignores_case) {
    const int64_t length = scanner->end - at;
    if (length < 2 || *at != '\'') return NULL;
    const uint8_t first = ignores_case ? lower(at[1]) : at[1];
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
    if (length < 3) return NULL;
    if (ignores_case && at[1] == 0xc5 && at[2] == 0xbf) return at + 3; /* U+017F, a long s */
    const uint8_t second = ignores_case ? lower(at[2]) : at[2];
    return (second == 'e' && (first == 'r' || first == 'v')) || (second == 'l' && first == 'l') ? at + 3 : NULL;
}

/* \s*[\r\n]+ if `ends_at_newline`, else \s+(?!\S)|\s+ */
static const uint8_t *skip_spaces(const Scanner *scanner, const uint8_t *at, int ends_at_newline) {
    const uint8_t *last = at, *after_newline = NULL, *next = at, *to = at;
    while (to < scanner->end && char_class(scanner, to, &next) == SPACE) {
        last = to;
        if (*to == '\r' || *to == '\n') after_newline = next;
        to = next;
    }
    if (ends_at_newline && after_newline) return after_newline;
    return to < scanner->end && last > at ? last : to; /* the last space belongs to the next word */
}

static const uint8_t *next_gpt2_word(const Scanner *scanner, const uint8_t *at) {
    const uint8_t *next, *contraction = skip_contraction(scanner, at, 0);
    if (contraction) return contraction;
    int class = char_class(scanner, at, &next);
    if (class == SPACE) {
        if (*at != ' ' || next == scanner->end) return skip_spaces(scanner, at, 0);
        class = char_class(scanner, next, &next);
        if (class == SPACE) return skip_spaces(scanner, at, 0);
    }
    return skip_class(scanner, next, class, UINT64_MAX);
}

static const uint8_t *next_newer_word(const Scanner *scanner, const uint8_t *at, uint64_t max_digits) {
    const uint8_t *next, *after, *contraction = skip_contraction(scanner, at, 1);
    if (contraction) return contraction;
    int class = char_class(scanner, at, &next);
    if (class == LETTER) return skip_class(scanner, next, LETTER, UINT64_MAX);
    if (class == NUMBER) return skip_class(scanner, next, NUMBER, max_digits - 1);
    int next_class = next < scanner->end ? char_class(scanner, next, &after) : SPACE;
    if (next_class == LETTER && *at != '\r' && *at != '\n') return skip_class(scanner, after, LETTER, UINT64_MAX);
    if (class == SPACE && (*at != ' ' || next_class != 0)) return skip_spaces(scanner, at, 1);
    const uint8_t *to = skip_class(scanner, next, 0, UINT64_MAX);
    while (to < scanner->end && (*to == '\r' || *to == '\n')) to++;
    return to;
}

const uint8_t *next_word(int pattern, const CharTable *chars, const uint8_t *at, const uint8_t *end, MissingPages *missing) {
    const Scanner scanner = {chars, end, missing};
    if (pattern == GPT2) return next_gpt2_word(&scanner, at);
    return next_newer_word(&scanner, at, pattern == ONE_DIGIT ? 1 : 3);
}
