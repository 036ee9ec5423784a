/* A program that calls the functions of a C tokenizer on requests from standard input: 'n' creates it, 'p' sends the properties
 * of a page of characters, 'e' encodes texts. The file that includes this has the type Tokenizer and the four functions below.
 *
 * A request is one letter, its integer arguments, then its arrays, each preceded by its size in bytes. Integers are 64-bit
 * little-endian. Results are written to standard output. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void read_all(void *to, size_t bytes) {
    if (fread(to, 1, bytes, stdin) != bytes) exit(2);
}

static int64_t read_integer(void) {
    int64_t value;
    read_all(&value, sizeof value);
    return value;
}

static void *read_array(void) {
    const int64_t bytes = read_integer();
    void *data = malloc(bytes + 1);
    if (!data) exit(3);
    read_all(data, bytes);
    return data;
}

static void write_all(const void *data, size_t bytes) {
    if (fwrite(data, 1, bytes, stdout) != bytes) exit(4);
}

static void write_integer(int64_t value) { write_all(&value, sizeof value); }

typedef struct {
    uint8_t *text, *missing_pages;
    int64_t *lengths, *offsets, count, max_ids;
    int32_t *ids;
    int ascii, is_normalized;
} EncodeCall;

static Tokenizer *create(void);
static int add_page(Tokenizer *tokenizer, uint64_t page, const void *chars);
static int64_t encode(Tokenizer *tokenizer, const EncodeCall *call);
static void destroy(Tokenizer *tokenizer);

enum { PAGES = 0x1100 };

static void answer_encode(Tokenizer *tokenizer) {
    uint8_t missing_pages[PAGES] = {0};
    EncodeCall call = {.count = read_integer(), .missing_pages = missing_pages};
    call.ascii = (int)read_integer();
    call.is_normalized = (int)read_integer();
    call.max_ids = read_integer();
    call.text = read_array();
    call.lengths = read_array();
    call.offsets = calloc(call.count + 1, sizeof *call.offsets);
    call.ids = malloc(call.max_ids * sizeof *call.ids);
    if (!call.offsets || !call.ids) exit(3);
    write_integer(encode(tokenizer, &call));
    write_all(call.lengths, call.count * sizeof *call.lengths);
    write_all(call.offsets, (call.count + 1) * sizeof *call.offsets);
    write_all(missing_pages, sizeof missing_pages);
    write_all(call.ids, call.offsets[call.count] * sizeof *call.ids);
    free(call.text), free(call.lengths), free(call.offsets), free(call.ids);
}

int main(void) {
    Tokenizer *tokenizer = NULL;
    for (int call; (call = getchar()) != EOF; fflush(stdout)) {
        if (call == 'n') {
            tokenizer = create();
            write_integer(tokenizer != NULL);
        } else if (call == 'p') {
            const int64_t page = read_integer();
            void *chars = read_array();
            write_integer(add_page(tokenizer, (uint64_t)page, chars));
            free(chars);
        } else if (call == 'e')
            answer_encode(tokenizer);
        else
            return 5;
    }
    destroy(tokenizer);
    return 0;
}
