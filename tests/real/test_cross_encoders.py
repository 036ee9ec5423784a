"""A real cross-encoder returns the scores of Sentence Transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder
from torch import nn

from cenote import LLM, PoolingParams
from tests.factories import LLMFactory
from tests.real.conftest import model_folder
from tests.real.texts import TEXTS

NAME = "ms-marco-MiniLM-L12-v2"
BERLIN = "How many people live in Berlin?"
ANSWERS = [
    "Berlin has a population of 3,520,031 registered inhabitants in an area of 891.82 square kilometers.",
    "Berlin is well known for its museums.",
]
TRUNCATE = {"truncate_prompt_tokens": -1}


@pytest.fixture(scope="module")
def llm(open_llm: LLMFactory) -> LLM:
    return open_llm(model_folder(NAME))


@pytest.fixture(scope="module")
def reference() -> Callable[..., list[float]]:
    precise = {"dtype": torch.float32}
    model = CrossEncoder(str(model_folder(NAME)), device="cpu", local_files_only=True, model_kwargs=precise)
    return lambda pairs, **options: model.predict(pairs, batch_size=4, show_progress_bar=False, **options).tolist()


def scores(llm: LLM, query: Any, documents: Any, **options: Any) -> list[float]:
    return [item.outputs.score for item in llm.score(query, documents, use_tqdm=False, **options)]


def test_the_document_about_berlin_ranks_first(llm: LLM, reference: Any) -> None:
    actual = scores(llm, BERLIN, ANSWERS)

    assert actual == pytest.approx(reference([(BERLIN, answer) for answer in ANSWERS]), abs=1e-3)
    assert actual == pytest.approx([9.1, -3.9], abs=0.3)


def test_every_pair_scores_as_in_sentence_transformers(llm: LLM, reference: Any) -> None:
    documents = [text for text in TEXTS if text.strip()]
    queries = [documents[(number * 7 + 3) % len(documents)][:200] for number in range(len(documents))]

    actual = scores(llm, queries, documents, tokenization_kwargs=TRUNCATE)

    assert actual == pytest.approx(reference(list(zip(queries, documents, strict=True))), abs=1e-3)


def test_raw_scores_are_logits(llm: LLM, reference: Any) -> None:
    pairs = [(BERLIN, answer) for answer in ANSWERS]

    raw = scores(llm, BERLIN, ANSWERS, pooling_params=PoolingParams(use_activation=False))

    assert raw == pytest.approx(reference(pairs, activation_fn=nn.Identity()), abs=1e-3)


def test_an_activation_may_be_requested() -> None:
    overrides = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}

    with LLM(str(model_folder(NAME)), dtype="float32", device="cpu", hf_overrides=overrides) as llm:
        squashed = scores(llm, BERLIN, ANSWERS)
        raw = scores(llm, BERLIN, ANSWERS, pooling_params=PoolingParams(use_activation=False))

    assert squashed == pytest.approx(torch.tensor(raw).sigmoid().tolist(), abs=1e-6)
