/* UTF-8 and hashing, shared by the native tokenizers. Texts are valid UTF-8 and followed by PADDING_BYTES readable bytes. */
#ifndef CENOTE_TEXT_H
#define CENOTE_TEXT_H
#include <stdint.h>
#include <string.h>

enum { PAGES = 0x1100, PADDING_BYTES = 64 };

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

static inline uint64_t hash_integer(uint64_t value) {
    value *= 0x9e3779b97f4a7c15;
    return value ^ value >> 32;
}

static inline int char_bytes(uint8_t first) { return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4; }

static inline uint32_t code_point(const uint8_t **at) {
    const uint8_t *p = *at;
    int more = char_bytes(p[0]) - 1;
    uint32_t code = more ? p[0] & (0x3f >> more) : p[0];
    for (int i = 1; i <= more; i++) code = code << 6 | (p[i] & 0x3f);
    *at = p + 1 + more;
    return code;
}

static inline const uint8_t *skip_chars(const uint8_t *at, int64_t chars) {
    for (; chars; chars--) at += char_bytes(*at);
    return at;
}

static inline int is_ascii(const uint8_t *at, const uint8_t *end) {
    uint64_t any = 0;
    for (; end - at >= 8; at += 8) any |= first_bytes(at, 8);
    if (at < end) any |= first_bytes(at, end - at);
    return !(any & 0x8080808080808080);
}
#endif
