"""Truncation that keeps the special tokens equals that of the tokenizers library, on either side."""

from __future__ import annotations

import pytest
import tokenizers

from cenote.inputs.limits import Limits
from cenote.inputs.renderer import Renderer
from cenote.inputs.tokenized_inputs import TokenizedInput
from cenote.protocol.input_types import Input, TextPair
from cenote.protocol.params import TokenizationParams

# the last one is so long that it is cropped before tokenization; of few tokens, since the library makes all pairs of
# the truncated parts
TEXTS = [
    "a cat",
    "the river of stones runs unbelievably slowly to the old city",
    "x" * 300,
    "international understanding government " * 80,
]
PAIRS = [(query, document) for query in TEXTS for document in TEXTS]
MAX_TOKENS = [3, 4, 9, 16]


def render(renderer: Renderer, inputs: list[Input], tokenization: TokenizationParams) -> list[tuple[list[int], int]]:
    """Return the ids of every input and the index of its first token of type 1."""
    found = []
    for item in renderer.render(inputs, tokenization, Limits(512), None):
        assert isinstance(item, TokenizedInput)
        found.append((item.token_ids.tolist(), item.type1_start))
    return found


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("max_tokens", MAX_TOKENS)
def test_truncated_texts_and_pairs_equal_those_of_tokenizers(renderer: Renderer, side: str, max_tokens: int) -> None:
    tokenization = TokenizationParams(max_tokens, side, keep_special_tokens=True)  # type: ignore[arg-type]
    library = tokenizers.Tokenizer.from_str(renderer.tokenizer.raw.to_str())
    library.enable_truncation(max_tokens, direction=side, strategy="longest_first")

    single = render(renderer, [*TEXTS], tokenization)
    pairs = render(renderer, [TextPair(query, document) for query, document in PAIRS], tokenization)
    mixed = render(renderer, [TextPair("a", "b"), *TEXTS], tokenization)[1:]  # individually, not in bulk

    expected = [encoding.ids for encoding in library.encode_batch(TEXTS)]
    assert [ids for ids, _ in single] == [ids for ids, _ in mixed] == expected
    for (query, document), (ids, type1_start) in zip(PAIRS, pairs, strict=True):
        encoding = library.encode(query, document)
        assert ids == encoding.ids, (query, document)
        assert [int(index >= type1_start) for index in range(len(ids))] == encoding.type_ids


def test_without_it_an_explicit_side_cuts_the_special_tokens_as_vllm_does(renderer: Renderer) -> None:
    ((ids, _),) = render(renderer, [TEXTS[1]], TokenizationParams(4, "left"))

    assert ids == renderer.tokenizer.raw.encode(TEXTS[1]).ids[-4:]
