"""Native BPE and Unigram encoders: the same ids as the `tokenizers` library, many times as fast.

Compiled from the C files of this folder at install time if a C compiler is available; otherwise the library is used.
"""
