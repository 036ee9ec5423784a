"""Plain inputs are rendered all at once, and as they would be one by one."""

from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cenote.errors import PoolingError
from cenote.inputs.limits import Limits
from cenote.inputs.renderer import Renderer
from cenote.inputs.tokenized_inputs import Rendered
from cenote.inputs.tokenizer import Tokenizer
from cenote.protocol.input_types import Pair
from cenote.protocol.requests import Tokenization
from tests.inputs.conftest import read

WORDS = ["a", "river", "of", "stones", "unbelievably", "12", "ß", "漢字", "x" * 30, ""]
HOW: dict[str, dict[str, Any]] = {
    "as they are": {},
    "cut": {"truncate_prompt_tokens": 6},
    "cut to nothing": {"truncate_prompt_tokens": 1},
    "cut on the left": {"truncate_prompt_tokens": 6, "truncation_side": "left"},
    "as long as the model reads": {"truncate_prompt_tokens": -1},
    "without special tokens": {"add_special_tokens": False},
    "filled up": {"pad_prompt_tokens": 9},
}


def texts(dice: random.Random, count: int = 12) -> list[str]:
    return [" ".join(dice.choices(WORDS, k=dice.randint(0, 12))) for _ in range(count)]


def drawn(kind: str, dice: random.Random) -> list[Any]:
    if kind == "texts":
        return texts(dice)
    if kind == "pairs":
        return [Pair(query, document) for query, document in zip(texts(dice) * 2, texts(dice, 24), strict=True)]
    ids = [[dice.randrange(30522) for _ in range(dice.randint(0, 12))] for _ in range(12)]
    return [np.array(row, dtype=np.uint16) for row in ids] if kind == "arrays" else [*ids, tuple(ids[0])]


def told(answer: Rendered | PoolingError) -> Any:
    if isinstance(answer, PoolingError):
        return type(answer), str(answer)
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in asdict(answer).items()}


@pytest.fixture(scope="module", params=["left", "right"])
def tokenizer(request: pytest.FixtureRequest, default_folder: Path) -> Tokenizer:
    return Tokenizer(read(default_folder / "tokenizer.json"), pad_token_id=0, truncation_side=request.param)


@pytest.mark.parametrize("kind", ["texts", "pairs", "lists", "arrays"])
@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_all_at_once_is_as_one_by_one(tokenizer: Tokenizer, kind: str, how: dict[str, Any]) -> None:
    renderer = Renderer(tokenizer, vocab_size=30522, hidden_size=384, skip_prompt=True)
    dice = random.Random(0)
    for prompt in (None, "query: ", None, "a river "):
        inputs, limits = drawn(kind, dice), Limits(dice.choice([12, 64]))

        together = renderer.render(inputs, Tokenization(**how), limits, prompt)

        odd = [Pair("a", "b"), "c"]  # with these beside it, nothing is plain
        alone = [renderer.render([item, *odd], Tokenization(**how), limits, prompt)[0] for item in inputs]
        assert [told(answer) for answer in together] == [told(answer) for answer in alone]


@pytest.mark.parametrize(
    "inputs",
    [["a b", "c"], [[5, 6], (7,)], [np.array([5]), np.array([6, 7])], [Pair("a", "b"), Pair("a", "c")]],
    ids=["texts", "ids", "arrays", "pairs"],
)
def test_plain_inputs_get_no_closer_look(
    renderer: Renderer, inputs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renderer, "_each", lambda *args: pytest.fail("one by one"))

    assert len(renderer.render(inputs, Tokenization(truncate_prompt_tokens=8), Limits(16))) == 2


def test_a_query_of_many_pairs_is_tokenized_once(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    encode = renderer.tokenizer.encode_flat
    monkeypatch.setattr(
        renderer.tokenizer, "encode_flat", lambda texts, **how: seen.extend(texts) or encode(texts, **how)
    )

    renderer.render([Pair("a", "b"), Pair("a", "c"), Pair("a", "a")], Tokenization(), Limits(16))

    assert seen == ["a", "b", "c"]
