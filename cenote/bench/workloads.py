"""Benchmark texts, generated from a seed or read from a file."""

from __future__ import annotations

import string
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers

from cenote.errors import BadRequest, LoadError, Unsupported
from cenote.loading.checkpoint import check_not_empty, find_checkpoint
from cenote.loading.default_model import find_default_model


@dataclass(frozen=True, slots=True)
class TextWorkload:
    """Texts and their lengths in tokens, including special tokens."""

    texts: list[str]
    lengths: list[int]

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)

    def describe(self) -> str:
        percentiles = np.percentile(self.lengths, (5, 50, 95)).astype(int)
        mean = self.num_tokens / len(self.lengths)
        return (
            f"{len(self.texts)} texts, {self.num_tokens} tokens: mean {mean:.0f}, "
            f"5/50/95 % at {percentiles[0]}/{percentiles[1]}/{percentiles[2]}"
        )


def make_log_normal_workload(
    tokenizer: tokenizers.Tokenizer,
    count: int,
    *,
    mean: float = 50,
    sigma: float = 0.8,
    max_length: int = 256,
    seed: int = 0,
) -> TextWorkload:
    """Make texts with log-normal lengths in tokens, like real queries and passages."""
    random = np.random.default_rng(seed)
    # the mean of a log-normal is exp(mu + sigma^2 / 2)
    lengths = random.lognormal(np.log(mean) - sigma**2 / 2, sigma, count).clip(3, max_length).astype(int)
    words = single_token_words(tokenizer)
    texts = [" ".join([words[at] for at in random.integers(0, len(words), length - 2)]) for length in lengths]
    return TextWorkload(texts, [len(encoding.ids) for encoding in tokenizer.encode_batch(texts)])


def single_token_words(tokenizer: tokenizers.Tokenizer) -> list[str]:
    """Return words that are one token each, so that a text's length can be chosen.

    A vocabulary without English words, for example one of single characters, gives its shortest words in any script.
    """
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    words = sorted({token.lstrip("▁Ġ") for token in vocabulary})
    english = [word for word in words if len(word) > 2 and word.isascii() and word.isalpha()]
    if english:
        return english
    for candidates in ([word for word in words if word.isalnum()], string.ascii_lowercase):
        if shortest := _words_with_fewest_tokens(tokenizer, candidates):
            return shortest
    raise Unsupported(
        f"cannot make texts for a measurement: none of the {len(vocabulary):,} tokens of the tokenizer is a word; "
        "bench serve takes another tokenizer with --tokenizer FOLDER, or your own texts with --dataset FILE.jsonl"
    )


def _words_with_fewest_tokens(tokenizer: tokenizers.Tokenizer, words: Iterable[str]) -> list[str]:
    """Return the words with the fewest tokens; none if they all encode to the same ids, such as one unknown token."""
    try:
        encoded = {tuple(tokenizer.encode(word, add_special_tokens=False).ids): word for word in words}
    except Exception:  # a word-level tokenizer without an unknown token; the library raises nothing narrower
        return []
    encoded.pop((), None)
    if len(encoded) < 2:  # texts would be identical, and computed once
        return []
    fewest = min(map(len, encoded))
    return [word for ids, word in encoded.items() if len(ids) == fewest]


def load_tokenizer(model: str | None) -> tokenizers.Tokenizer:
    """Load the tokenizer of a folder, a hub name or (None) the default model; weights are not required."""
    checkpoint = find_checkpoint(find_default_model() if model is None else model, needs_config=False)
    path = checkpoint.find_file("tokenizer.json")
    if path is None:
        raise LoadError(f"{checkpoint.folder} has no tokenizer.json; pass a folder that has one with --tokenizer")
    check_not_empty(path)
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise LoadError(f"cannot load the tokenizer {path}: {error}") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def read_texts(path: str, column: str) -> list[str]:
    """Read one column of a JSON Lines file; lines may also be strings."""
    import msgspec  # optional: not installed on every machine that only generates texts

    texts = []
    for number, line in enumerate(Path(path).read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(f"{path}, line {number}: invalid JSON: {error}") from None
        text = row.get(column) if isinstance(row, dict) else row
        if not isinstance(text, str):
            columns = ", ".join(row) if isinstance(row, dict) else type(row).__name__
            raise BadRequest(f"{path}, line {number}: no text column {column!r}; available: {columns}; set --column")
        texts.append(text)
    if not texts:
        raise BadRequest(f"{path} contains no texts")
    return texts
