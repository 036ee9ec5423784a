"""Texts on which a model is compared with itself at load, in another format of its linear layers."""

from __future__ import annotations

from cenote.loading.tokenizer_files import TokenizerFiles

SAMPLE_TEXTS = (
    "which planet is red?",
    "Paris is the capital of France.",
    "The cave is 40 metres deep, and its entrance is hidden under the roots of an old ceiba tree.",
    "def add(a, b):\n    return a + b  # 1,234.5 %",
)
MAX_SAMPLE_TOKENS = 32


def make_sample(tokenizer: TokenizerFiles, vocab_size: int) -> list[list[int]] | None:
    """Return the token ids of a few short texts; None if the model has no embeddings for them."""
    ids = [encoding.ids[:MAX_SAMPLE_TOKENS] for encoding in tokenizer.tokenizer.encode_batch(list(SAMPLE_TEXTS))]
    return ids if all(row and max(row) < vocab_size for row in ids) else None
