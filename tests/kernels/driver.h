/* Requests to a program that calls the functions of a tokenizer.
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
