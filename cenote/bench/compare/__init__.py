"""Comparison with other engines on the same texts and weights, each in its own process, in interleaved rounds."""
