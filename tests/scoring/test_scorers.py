"""Scorers with a fake engine: pairing, score types, scores, usage and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from cenote.errors import BadRequest, PoolingError, Unsupported
from cenote.protocol.input_types import TextPair
from cenote.protocol.params import PoolingParams, ScoreType, Task, TokenizationParams
from cenote.protocol.requests import PoolRequest, ScoreRequest
from cenote.protocol.results import PoolResult, ScoreResult
from cenote.scoring.scorer import SCORERS, ScoringContext, ScoringModel, check_pair_counts, select_scorer

EMBEDDER = ScoringModel("mini", ("embed", "token_embed"), num_labels=2, pad_token_id=0)
RERANKER = ScoringModel("cross", ("classify", "token_classify"), num_labels=1)
VECTORS = {"north": [0.0, 2.0], "east": [3.0, 0.0], "northeast": [1.0, 1.0], "nowhere": [0.0, 0.0]}


class FakePool:
    """Returns fixed vectors for message and records the requests."""

    def __init__(self) -> None:
        self.requests: list[PoolRequest] = []

    async def __call__(self, request: PoolRequest) -> list[PoolResult | PoolingError]:
        self.requests.append(request)
        return [self._make_result(request.task, item) for item in request.inputs]

    async def max_sim(self, request: PoolRequest, queries: Sequence[Any]) -> list[PoolResult | PoolingError]:
        results = await self(request)
        for result, query in zip(results, queries, strict=True):
            if isinstance(result, PoolResult):
                result.data = (query @ result.data.T).max(axis=-1).sum()
        return results

    async def count_tokens(self, inputs: Sequence[Any]) -> list[int]:
        return [len(item.query.split()) + sum(len(text.split()) for text in item.documents) for item in inputs]

    @property
    def context(self) -> ScoringContext:
        return ScoringContext(self, self.max_sim, self.count_tokens, asyncio.to_thread)

    def _make_result(self, task: Task, item: Any) -> PoolResult | PoolingError:
        if item == "bad" or (isinstance(item, TextPair) and "bad" in (item.query, item.document)):
            return BadRequest("a bad text")
        if task == "classify":
            data = np.array([len(item.query) + len(item.document) / 10], np.float32)
        else:
            data = np.array(VECTORS[item] if task == "embed" else [VECTORS[word] for word in item.split()], np.float32)
        ids = np.arange(len(str(item)), dtype=np.int32)
        return PoolResult(data, ids, len(ids), len(ids))


def score(request: ScoreRequest, model: ScoringModel = EMBEDDER, pool: Any = None) -> list[Any]:
    results = asyncio.run(select_scorer(request, model)(request, (pool or FakePool()).context, model))
    return [result.score if isinstance(result, ScoreResult) else result for result in results]


# pairing


@pytest.mark.parametrize(
    ("queries", "documents", "message"),
    [
        (["a", "b"], ["c"], "Input lengths must be either 1:1, 1:N or N:N"),
        (["a", "b"], ["c", "d", "e"], "Input lengths must be either 1:1, 1:N or N:N"),
        (["a", "b"], [], "Input lengths must be either 1:1, 1:N or N:N"),
        ([], ["c"], "At least one text element must be given"),
        ([], [], "At least one text element must be given"),
        (["a"], [], "At least one text_pair element must be given"),
    ],
)
def test_lists_of_incompatible_lengths_are_refused(queries: list[str], documents: list[str], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        check_pair_counts(ScoreRequest(queries=queries, documents=documents))


@pytest.mark.parametrize(("queries", "documents"), [(["a"], ["b"]), (["a"], ["b"] * 9), (["a"] * 9, ["b"] * 9)])
def test_lists_of_compatible_lengths_are_accepted(queries: list[str], documents: list[str]) -> None:
    check_pair_counts(ScoreRequest(queries=queries, documents=documents))


# score types


@pytest.mark.parametrize(
    ("tasks", "num_labels", "preferred", "score_types"),
    [
        (("embed", "token_embed"), 2, None, ("bi-encoder", "late-interaction")),
        (("embed", "token_embed"), 2, "late-interaction", ("late-interaction", "bi-encoder")),
        (("token_embed",), 2, None, ("late-interaction",)),
        (("token_embed",), 2, "listwise", ("listwise",)),
        (("embed", "token_embed", "sparse_embed"), 2, None, ("bi-encoder", "late-interaction", "sparse")),
        (("embed", "token_embed", "sparse_embed"), 2, "sparse", ("sparse", "bi-encoder", "late-interaction")),
        (("classify", "token_classify"), 1, None, ("cross-encoder",)),
        (("classify", "token_classify"), 3, None, ()),
        (("token_classify",), 1, None, ()),
    ],
)
def test_score_types_follow_from_the_tasks(
    tasks: tuple[Task, ...], num_labels: int, preferred: ScoreType | None, score_types: tuple[str, ...]
) -> None:
    assert ScoringModel("m", tasks, num_labels, preferred_score_type=preferred).score_types == score_types


def test_the_default_score_type_is_used_unless_another_is_requested() -> None:
    request = ScoreRequest(queries=["a"], documents=["b"])

    assert select_scorer(request, EMBEDDER) is SCORERS["bi-encoder"]
    assert select_scorer(request, RERANKER) is SCORERS["cross-encoder"]
    other = ScoreRequest(queries=["a"], documents=["b"], score_type="late-interaction")
    assert select_scorer(other, EMBEDDER) is SCORERS["late-interaction"]


@pytest.mark.parametrize(
    ("model", "kind", "message"),
    [
        (ScoringModel("m", ("classify",), 3), None, "Scoring API is only enabled for num_labels == 1."),
        (ScoringModel("m", ("token_classify",), 3), None, "This model does not support the Scoring API."),
        (
            EMBEDDER,
            "cross-encoder",
            "mini does not support score_type 'cross-encoder'; available: bi-encoder, late-interaction",
        ),
        (RERANKER, "bi-encoder", "cross does not support score_type 'bi-encoder'; available: cross-encoder"),
        (EMBEDDER, "vibes", "mini does not support score_type 'vibes'"),
    ],
)
def test_an_unsupported_score_type_is_refused(model: ScoringModel, kind: Any, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        select_scorer(ScoreRequest(queries=["a"], documents=["b"], score_type=kind), model)


# the scores


def test_bi_encoder_scores_are_cosine_similarities() -> None:
    request = ScoreRequest(queries=["north"], documents=["north", "east", "northeast", "nowhere"])

    assert score(request) == pytest.approx([1.0, 0.0, 0.5**0.5, 0.0])


def test_lists_of_equal_length_are_compared_pair_by_pair() -> None:
    request = ScoreRequest(queries=["north", "east"], documents=["northeast", "north"])

    assert score(request) == pytest.approx([0.5**0.5, 0.0])


def test_one_query_is_encoded_once_for_all_documents() -> None:
    pool = FakePool()
    params, tokenization = PoolingParams(), TokenizationParams(truncate_prompt_tokens=5)

    score(ScoreRequest(queries=["north"], documents=["east"] * 5, params=params, tokenization=tokenization), pool=pool)

    (request,) = pool.requests
    assert request.inputs == ["north", *["east"] * 5]
    assert request.task == "embed"
    assert request.params is params
    assert request.tokenization is tokenization


def test_late_interaction_sums_the_best_match_of_every_query_token() -> None:
    request = ScoreRequest(
        queries=["north east"], documents=["northeast", "east north", "nowhere"], score_type="late-interaction"
    )

    assert score(request) == pytest.approx([2.0 + 3.0, 4.0 + 9.0, 0.0])


def test_only_late_interaction_sets_the_role_of_its_inputs() -> None:
    late, plain = FakePool(), FakePool()
    request = ScoreRequest(queries=["north"], documents=["east", "north"], adapter="mine")

    score(request.replace(score_type="late-interaction"), pool=late)
    score(request, pool=plain)

    assert [(request.inputs, request.role) for request in late.requests] == [
        (["north"], "query"),
        (["east", "north"], "document"),
    ]
    assert [request.role for request in plain.requests] == [None]
    assert {request.adapter for request in (*late.requests, *plain.requests)} == {"mine"}


def test_a_cross_encoder_encodes_both_texts_together() -> None:
    pool = FakePool()
    request = ScoreRequest(queries=["abc"], documents=["d", "ef"], template="{{ x }}", template_kwargs={"x": 1})

    assert score(request, RERANKER, pool) == pytest.approx([3.1, 3.2])
    assert pool.requests[0].task == "classify"
    assert pool.requests[0].inputs == [
        TextPair("abc", "d", "{{ x }}", {"x": 1}),
        TextPair("abc", "ef", "{{ x }}", {"x": 1}),
    ]


def test_template_kwargs_override_the_instruction_variable() -> None:
    pool = FakePool()
    request = ScoreRequest(queries=["a"], documents=["b"], instruction="find", template_kwargs={"x": 1})

    score(request, RERANKER, pool)
    score(request.replace(template_kwargs={"instruction": "seek"}), RERANKER, pool)

    assert [list(request.inputs) for request in pool.requests] == [
        [TextPair("a", "b", None, {"instruction": "find", "x": 1})],
        [TextPair("a", "b", None, {"instruction": "seek"})],
    ]


# usage


@pytest.mark.parametrize("kind", ["bi-encoder", "late-interaction"])
@pytest.mark.parametrize(("pad", "separator"), [(0, [0]), (7, [7]), (None, [])])
def test_the_ids_of_a_pair_are_joined_by_padding_which_is_not_counted(
    kind: Any, pad: int | None, separator: list[int]
) -> None:
    model = ScoringModel("m", ("embed", "token_embed"), 2, pad_token_id=pad)
    request = ScoreRequest(queries=["east"], documents=["north", "east"], score_type=kind)

    first, second = asyncio.run(select_scorer(request, model)(request, FakePool().context, model))

    assert isinstance(first, ScoreResult)
    assert isinstance(second, ScoreResult)
    assert first.token_ids.tolist() == [0, 1, 2, 3, *separator, 0, 1, 2, 3, 4]
    assert (first.num_tokens, first.num_repeated_tokens) == (9, 0)
    assert (second.num_tokens, second.num_repeated_tokens) == (8, 4)  # the query is computed and counted once


# errors


@pytest.mark.parametrize("model", [EMBEDDER, RERANKER])
def test_an_invalid_document_fails_only_its_own_score(model: ScoringModel) -> None:
    request = ScoreRequest(queries=["north"], documents=["east", "bad", "north"], return_exceptions=True)

    results = score(request, model)

    assert [isinstance(result, BadRequest) for result in results] == [False, True, False]


def test_an_invalid_query_fails_every_score() -> None:
    results = score(ScoreRequest(queries=["bad"], documents=["east", "bad", "north"], return_exceptions=True))

    assert all(isinstance(result, BadRequest) for result in results)
