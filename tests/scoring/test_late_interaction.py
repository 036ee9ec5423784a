"""Late interaction in a real engine: a query is encoded once, and MaxSim runs on the device."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from cenote import LLM, InputTooLong
from cenote.engine.execution import native_executor
from cenote.engine.result_delivery import BatchOutput
from cenote.packed_batch import pack_arrays
from cenote.pooling.pooler import PooledGroup, PoolingSpec
from cenote.protocol.params import PoolingOptions
from cenote.protocol.requests import PoolRequest, ScoreRequest
from cenote.protocol.results import ScoreResult
from tests.factories import LLMFactory
from tests.tiny import tiny_modernbert

QUERY = "how big is the old river in berlin?"
DOCUMENTS = ["the river is big", "a", "the old city of berlin, where people live", "a red bird", "two"] * 9


@pytest.fixture(scope="module")
def colbert(shared_llm: LLMFactory) -> Any:
    return shared_llm(tiny_modernbert, max_num_seqs=4)


def embed_tokens(llm: LLM, texts: list[str]) -> list[Tensor]:
    return [output.outputs.data for output in llm.encode(texts, pooling_task="token_embed", use_tqdm=False)]


def max_sim(query: Tensor, document: Tensor) -> float:
    return float((query @ document.T).amax(dim=1).sum())


def score_late(llm: LLM, queries: Any, documents: Any) -> list[float]:
    outputs = llm.score(queries, documents, score_type="late-interaction", use_tqdm=False)
    return [output.outputs.score for output in outputs]


def test_scores_are_those_of_the_returned_matrices(colbert: LLM) -> None:
    (query,), documents = embed_tokens(colbert, [QUERY]), embed_tokens(colbert, DOCUMENTS)

    assert score_late(colbert, QUERY, DOCUMENTS) == pytest.approx(
        [max_sim(query, document) for document in documents], abs=1e-4
    )
    reversed_rows = embed_tokens(colbert, DOCUMENTS[::-1])
    expected = [max_sim(query_rows, rows) for query_rows, rows in zip(reversed_rows, documents, strict=True)]
    assert score_late(colbert, DOCUMENTS[::-1], DOCUMENTS) == pytest.approx(expected, abs=1e-4)


def test_only_scores_of_documents_leave_the_device(colbert: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []
    to_batch_output = native_executor.to_batch_output

    def record_shapes(groups: list[PooledGroup]) -> BatchOutput:
        shapes.extend(tuple(group.rows.shape) for group in groups)
        return to_batch_output(groups)

    monkeypatch.setattr(native_executor, "to_batch_output", record_shapes)
    score_late(colbert, QUERY, DOCUMENTS)

    matrices = [shape for shape in shapes if len(shape) > 1]
    assert matrices == [(len(colbert.get_tokenizer().encode(QUERY).ids), 32)]  # the query's only
    assert sum(shape[0] for shape in shapes if len(shape) == 1) >= len(DOCUMENTS)


def test_a_query_is_encoded_once(colbert: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[PoolRequest] = []
    submit = colbert.engine.submit

    def record_request(request: PoolRequest, **kwargs: Any) -> Any:
        requests.append(request)
        return submit(request, **kwargs)

    monkeypatch.setattr(colbert.engine, "submit", record_request)
    score_late(colbert, QUERY, DOCUMENTS)

    assert [list(request.inputs) for request in requests] == [[QUERY], DOCUMENTS]


def test_a_batch_may_mix_scored_and_returned_documents(colbert: LLM) -> None:
    pooler, batch = colbert.engine.model.pooler, pack_arrays([[7, 8, 9], [10, 11], [12, 13, 14, 15]])
    hidden = torch.randn(9, 32, generator=torch.Generator().manual_seed(0))
    first_query, second_query = torch.randn(4, 32), torch.randn(2, 32)
    rows_spec, score_spec = (
        PoolingSpec("token_embed", PoolingOptions()),
        PoolingSpec("token_embed", PoolingOptions(), is_max_sim=True),
    )

    queries = [first_query.numpy(), None, second_query.numpy()]
    groups = pooler(hidden.numpy(), batch, [[score_spec], [rows_spec], [score_spec]], queries)

    assert [(group.spec, group.seq_indices) for group in groups] == [(score_spec, [0, 2]), (rows_spec, [1])]
    unit = torch.nn.functional.normalize(hidden, dim=-1)
    scores, rows = (torch.from_numpy(group.rows) for group in groups)
    assert_close(scores, torch.tensor([max_sim(first_query, unit[:3]), max_sim(second_query, unit[5:])]))
    assert_close(rows, unit[3:5])


def test_an_invalid_input_fails_only_its_own_pairs(colbert: LLM) -> None:
    def succeeded(queries: list[str], documents: list[str]) -> list[bool]:
        request = ScoreRequest(
            queries=queries,
            documents=documents,
            score_type="late-interaction",
            return_exceptions=True,
            max_tokens_per_doc=5,
        )
        return [isinstance(result, ScoreResult) for result in asyncio.run(colbert.engine.score(request))]

    assert succeeded(["a"], ["b", "\ud800", "c"]) == [True, False, True]
    assert succeeded(["a", "\ud800", "c"], ["a", "b", "\ud800"]) == [True, False, False]
    assert succeeded(["\ud800"], ["a", "b"]) == [False, False]


def test_an_error_names_the_query_or_the_document(colbert: LLM) -> None:
    def refused(queries: list[str], documents: list[str]) -> InputTooLong:
        with pytest.raises(InputTooLong) as caught:
            score_late(colbert, queries, documents)
        return caught.value

    assert refused(["one"], ["two", "word " * 1000]).index == 1
    query_error = refused(["word " * 1000], ["two"])
    assert query_error.index is None and query_error.message.startswith("query: ")
    assert refused(["one", "word " * 1000], ["two", "two"]).message.startswith("query 1: ")


def test_timing_covers_queries_and_documents(colbert: LLM) -> None:
    request = ScoreRequest(queries=[QUERY], documents=DOCUMENTS, score_type="late-interaction")

    colbert.engine.score_sync(request)

    assert request.timing.inference_s > 0 and request.timing.tokenize_s > 0
