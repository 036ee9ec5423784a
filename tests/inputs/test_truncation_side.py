"""Truncation that keeps the special tokens equals that of the tokenizers library, on either side."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers

from cenote.inputs.limits import Limits
from cenote.inputs.renderer import Renderer
from cenote.inputs.tokenized_inputs import TokenizedInput
from cenote.inputs.tokenizer import Tokenizer
from cenote.protocol.input_types import Input, TextPair
from cenote.protocol.params import TokenizationParams
from tests.inputs.conftest import read_tokenizer

TEXTS = ["a cat", "the river of stones runs unbelievably slowly to the old city", "x" * 300, "one two three " * 500]
PAIRS = [(query, document) for query in TEXTS for document in TEXTS]
MAX_TOKENS = [3, 4, 9, 16]


def render(
    raw: tokenizers.Tokenizer, inputs: list[Input], tokenization: TokenizationParams
) -> list[tuple[list[int], int]]:
    """Return the ids of every input and the index of its first token of type 1."""
    rendered = Renderer(Tokenizer(raw, pad_token_id=0), vocab_size=30522, hidden_size=384).render(
        inputs, tokenization, Limits(512), None
    )
    found = []
    for item in rendered:
        assert isinstance(item, TokenizedInput)
        found.append((item.token_ids.tolist(), item.type1_start))
    return found


@pytest.fixture(scope="module")
def raw(default_folder: Path) -> tokenizers.Tokenizer:
    return read_tokenizer(default_folder / "tokenizer.json")


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("max_tokens", MAX_TOKENS)
def test_truncated_texts_and_pairs_equal_those_of_tokenizers(
    raw: tokenizers.Tokenizer, side: str, max_tokens: int
) -> None:
    tokenization = TokenizationParams(max_tokens, side, keep_special_tokens=True)  # type: ignore[arg-type]
    library = tokenizers.Tokenizer.from_str(raw.to_str())
    library.enable_truncation(max_tokens, direction=side, strategy="longest_first")

    single = render(raw, [*TEXTS], tokenization)
    pairs = render(raw, [TextPair(query, document) for query, document in PAIRS], tokenization)
    mixed = render(raw, [TextPair("a", "b"), *TEXTS], tokenization)[1:]  # individually, not in bulk

    expected = [encoding.ids for encoding in library.encode_batch(TEXTS)]
    assert [ids for ids, _ in single] == [ids for ids, _ in mixed] == expected
    for (query, document), (ids, type1_start) in zip(PAIRS, pairs, strict=True):
        encoding = library.encode(query, document)
        assert ids == encoding.ids, (query, document)
        assert [int(index >= type1_start) for index in range(len(ids))] == encoding.type_ids


def test_without_it_an_explicit_side_cuts_the_special_tokens_as_vllm_does(raw: tokenizers.Tokenizer) -> None:
    ((ids, _),) = render(raw, [TEXTS[1]], TokenizationParams(4, "left"))

    assert ids == raw.encode(TEXTS[1]).ids[-4:]
