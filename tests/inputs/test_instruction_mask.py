"""Instructions of GritLM prompts, which are not pooled."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.testing import assert_close

from cenote import LLM, PoolingParams
from cenote.inputs.instruction_mask import InstructionMask
from cenote.inputs.tokenizer import Tokenizer as OurTokenizer
from tests.tiny import ROBERTA_TOKENS, change_config, save_tiny, save_tokenizer

PROMPT = "<|user|>\nquery: what is it?\n<|embed|>\nthe old river in berlin"


def no_activation() -> PoolingParams:
    return PoolingParams(use_activation=False)


def ids(*numbers: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(numbers, dtype=np.int32)


def make_word_tokenizer() -> OurTokenizer:
    vocabulary = {word: row for row, word in enumerate(["<s>", "<", "embed", ">", "a", "b", "c", "d", "e"])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return OurTokenizer(raw)


def tiny_gritlm(folder: Path) -> None:
    save_tiny(folder, "MistralModel")
    change_config(folder, architectures=["GritLM"])
    # one token per word, letter and punctuation character; none for line breaks
    save_tokenizer(folder, ROBERTA_TOKENS, two_types=False)


def test_tokens_before_the_marker_are_not_pooled(tmp_path: Path) -> None:
    tiny_gritlm(tmp_path)

    with LLM(str(tmp_path), dtype="float32") as llm:
        (rows,) = llm.encode(PROMPT, pooling_task="token_embed", pooling_params=no_activation(), use_tqdm=False)
        (vector,) = llm.embed(PROMPT, use_tqdm=False)
        ids, text = rows.prompt_token_ids, llm.encode("the old river in berlin", pooling_task="token_embed")[0]

    count = len(text.prompt_token_ids) - 1  # without the first token
    assert len(ids) > 2 * count
    expected = torch.nn.functional.normalize(rows.outputs.data[-count:].mean(0), dim=-1)
    assert_close(vector.outputs.data, expected, atol=1e-5, rtol=0)


def test_attention_is_bidirectional(tmp_path: Path) -> None:
    tiny_gritlm(tmp_path)

    with LLM(str(tmp_path), dtype="float32") as llm:
        one, other = llm.encode([[0, 9, 10, 11], [0, 9, 10, 12]], pooling_task="token_embed", use_tqdm=False)

    assert (one.outputs.data[0] - other.outputs.data[0]).abs().max() > 1e-3


def test_without_the_marker_only_the_first_token_is_not_pooled() -> None:
    instruction = InstructionMask(make_word_tokenizer(), "< embed >", first_token_id=0)

    assert instruction.count_masked_tokens(ids(0, 5, 6, 2, 3, 7, 8)) == 5
    assert instruction.count_masked_tokens(ids(0, 5, 6)) == 1
    assert instruction.count_masked_tokens(ids(0, 5, 6, 2, 3)) == 1  # nothing would be left to pool


def test_a_prompt_without_its_first_token_is_pooled_whole_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert (
            InstructionMask(make_word_tokenizer(), "< embed >", first_token_id=0).count_masked_tokens(
                ids(5, 1, 2, 3, 7)
            )
            == 0
        )

    assert "does not start with token 0" in caplog.text
