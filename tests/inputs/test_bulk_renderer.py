"""Bulk rendering of simple inputs gives the same results as rendering them individually."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import asdict

from cenote.errors import PoolingError
from cenote.inputs.limits import Limits
from cenote.inputs.renderer import Renderer
from cenote.inputs.renderer_settings import RendererSettings
from cenote.inputs.tokenized_inputs import RenderResult, TokenizedInput
from cenote.inputs.tokenizer import Tokenizer
from cenote.protocol.input_types import TextPair
from cenote.protocol.params import TokenizationParams
from tests.inputs.conftest import read_tokenizer

WORDS = ["a", "river", "of", "stones", "unbelievably", "12", "ß", "漢字", "x" * 30, ""]
TOKENIZATION_CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "truncated": {"truncate_prompt_tokens": 6},
    "truncated to one token": {"truncate_prompt_tokens": 1},
    "truncated on the left": {"truncate_prompt_tokens": 6, "truncation_side": "left"},
    "truncated to the model length": {"truncate_prompt_tokens": -1},
    "without special tokens": {"add_special_tokens": False},
    "padded": {"pad_prompt_tokens": 9},
}


def make_random_texts(rng: random.Random, count: int = 12) -> list[str]:
    return [" ".join(rng.choices(WORDS, k=rng.randint(0, 12))) for _ in range(count)]


def make_random_inputs(kind: str, rng: random.Random) -> list[Any]:
    if kind == "texts":
        return make_random_texts(rng)
    if kind == "pairs":
        return [
            TextPair(query, document)
            for query, document in zip(make_random_texts(rng) * 2, make_random_texts(rng, 24), strict=True)
        ]
    ids = [[rng.randrange(30522) for _ in range(rng.randint(0, 12))] for _ in range(12)]
    return [np.array(row, dtype=np.uint16) for row in ids] if kind == "arrays" else [*ids, tuple(ids[0])]


def to_dict(result: TokenizedInput | PoolingError) -> Any:
    if isinstance(result, PoolingError):
        return type(result), str(result)
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in asdict(result).items()}


@pytest.fixture(scope="module", params=["left", "right"])
def tokenizer(request: pytest.FixtureRequest, default_folder: Path) -> Tokenizer:
    return Tokenizer(read_tokenizer(default_folder / "tokenizer.json"), pad_token_id=0, truncation_side=request.param)


@pytest.mark.parametrize("kind", ["texts", "pairs", "lists", "arrays"])
@pytest.mark.parametrize("tokenization", TOKENIZATION_CASES.values(), ids=TOKENIZATION_CASES)
def test_bulk_rendering_gives_the_same_results_as_rendering_individually(
    tokenizer: Tokenizer, kind: str, tokenization: dict[str, Any]
) -> None:
    renderer = Renderer(tokenizer, RendererSettings(vocab_size=30522, hidden_size=384, exclude_prompt=True))
    rng = random.Random(0)
    for prompt in (None, "query: ", None, "a river "):
        inputs, limits = make_random_inputs(kind, rng), Limits(rng.choice([12, 64]))

        bulk = renderer.render(inputs, TokenizationParams(**tokenization), limits, prompt)

        mixed = [TextPair("a", "b"), "c"]  # inputs of different types are rendered individually
        individual = [
            renderer.render([item, *mixed], TokenizationParams(**tokenization), limits, prompt)[0] for item in inputs
        ]
        assert [to_dict(result) for result in bulk] == [to_dict(result) for result in individual]


@pytest.mark.parametrize("tokenization", TOKENIZATION_CASES.values(), ids=TOKENIZATION_CASES)
def test_a_single_text_gives_the_same_result_as_rendering_individually(
    tokenizer: Tokenizer, tokenization: dict[str, Any]
) -> None:
    renderer = Renderer(tokenizer, RendererSettings(vocab_size=30522, hidden_size=384, exclude_prompt=True))
    plain = Renderer(tokenizer, RendererSettings(vocab_size=30522, hidden_size=384))
    rng = random.Random(0)
    for prompt in (None, "query: "):
        texts = ["", "a", "\ud800", "river " * 1000, *make_random_inputs("texts", rng)]
        for text, limits in product(texts, (Limits(12), Limits(64))):
            for each in (renderer, plain):
                single = each.render([text], TokenizationParams(**tokenization), limits, prompt)

                mixed = each.render([text, TextPair("a", "b")], TokenizationParams(**tokenization), limits, prompt)
                assert to_dict(single[0]) == to_dict(mixed[0])


@pytest.mark.parametrize(
    "inputs",
    [["a b", "c"], [[5, 6], (7,)], [np.array([5]), np.array([6, 7])], [TextPair("a", "b"), TextPair("a", "c")]],
    ids=["texts", "ids", "arrays", "pairs"],
)
def test_plain_inputs_are_not_rendered_individually(
    renderer: Renderer, inputs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RenderResult, "from_list", lambda results: pytest.fail("rendered individually"))

    assert len(renderer.render(inputs, TokenizationParams(truncate_prompt_tokens=8), Limits(16))) == 2


def test_a_query_of_many_pairs_is_tokenized_once(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    encode = renderer.tokenizer.encode_flat
    monkeypatch.setattr(
        renderer.tokenizer, "encode_flat", lambda texts, **kwargs: encoded.extend(texts) or encode(texts, **kwargs)
    )

    renderer.render([TextPair("a", "b"), TextPair("a", "c"), TextPair("a", "a")], TokenizationParams(), Limits(16))

    assert encoded == ["a", "b", "c"]
