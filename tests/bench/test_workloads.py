"""Generated benchmark texts: reproducible, with the requested lengths."""

from __future__ import annotations

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from cenote.bench.workloads import make_log_normal_workload, single_token_words
from cenote.errors import Unsupported
from cenote.loading.default_model import find_default_model


@pytest.fixture(scope="module")
def tokenizer() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer.from_file(f"{find_default_model()}/tokenizer.json")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def test_the_same_seed_gives_the_same_texts(tokenizer: tokenizers.Tokenizer) -> None:
    assert make_log_normal_workload(tokenizer, 20, seed=3) == make_log_normal_workload(tokenizer, 20, seed=3)
    assert make_log_normal_workload(tokenizer, 20, seed=3) != make_log_normal_workload(tokenizer, 20, seed=4)


def test_lengths_are_distributed_around_the_requested_mean(tokenizer: tokenizers.Tokenizer) -> None:
    lengths = make_log_normal_workload(tokenizer, 2000, mean=40, max_length=200).lengths

    assert 36 <= np.mean(lengths) <= 44
    assert min(lengths) < 12 and 150 < max(lengths) <= 210


def word_level(*tokens: str, unknown: str | None = "[UNK]") -> tokenizers.Tokenizer:
    vocabulary = {token: number for number, token in enumerate([*([unknown] if unknown else []), *tokens])}
    made = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def byte_level() -> tokenizers.Tokenizer:
    """Return a tokenizer with a vocabulary of the 256 bytes only."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made


@pytest.mark.parametrize(
    "tokenizer",
    [word_level("水", "深", "泳"), word_level("tok1", "tok2", "tok3"), byte_level()],
    ids=["another script", "numbered words", "bytes"],
)
def test_a_tokenizer_without_english_words_gives_texts_too(tokenizer: tokenizers.Tokenizer) -> None:
    made = make_log_normal_workload(tokenizer, 50, mean=20)

    assert len(set(made.texts)) > 40 and min(made.lengths) >= 1
    assert all(len(tokenizer.encode(word).ids) == 1 for word in single_token_words(tokenizer))


@pytest.mark.parametrize("tokenizer", [word_level("[PAD]"), word_level("[PAD]", unknown=None)])
def test_a_tokenizer_without_any_word_is_refused_with_the_flags_that_help(tokenizer: tokenizers.Tokenizer) -> None:
    with pytest.raises(Unsupported, match=r"none of the \d tokens .* is a word; .*--tokenizer FOLDER.*--dataset"):
        make_log_normal_workload(tokenizer, 5)
