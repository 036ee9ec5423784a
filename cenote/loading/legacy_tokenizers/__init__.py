"""Tokenizers of checkpoints without tokenizer.json, built from older vocabulary files."""
