"""Readers of checkpoints: each claims those of one layout, and the last one takes config.json as Transformers does."""
