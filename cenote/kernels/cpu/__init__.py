"""Linear layers, attention and whole transformers in C, with kernels for several instruction sets."""
